"""Requests generated from the OpenAPI document: no server error, and every answer matches its schema."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")
pytest.importorskip("schemathesis", reason="needs the package schemathesis")

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

from tests.doors.served import serving

STREAMS = ("/v1/groups/{group}/events", "/v1/status/events", "/v1/groups/{group}/backfill")
CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance]
# This server posts to no webhooks and has no model that answers: its problems say so.
LACKING = {"urn:kgray:problem:not_built", "urn:kgray:problem:settings_error"}


@pytest.mark.slow
def test_no_request_of_the_document_causes_a_server_error(tmp_path):
    with serving(tmp_path / "data") as server:
        key = server.key("*", "admin")  # one is made by a request too: then one is needed
        client = server.client(key)
        row = {"text": "I work at Acme.", "speaker": "Alice", "id": "a1"}
        response = client.post("/v1/groups/team/episodes", json=row, headers={"prefer": "wait=30"})
        assert response.status_code == 200
        schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json").exclude(path=list(STREAMS))
        tried = 0
        for operation in schema.get_all_operations():
            tried += tries(operation.ok(), {"authorization": f"Bearer {key}"})
        assert tried > 300


def tries(operation, headers) -> int:
    count = 0

    @settings(
        max_examples=15, database=None, deadline=None, derandomize=True, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy())
    def ask(case):
        nonlocal count
        count += 1
        answer = case.call(headers=headers)
        lacks = answer.status_code >= 500 and answer.json()["type"] in LACKING
        checks = CHECKS[lacks:]
        case.validate_response(answer, checks=checks)

    ask()
    return count
