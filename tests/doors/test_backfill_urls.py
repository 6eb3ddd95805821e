"""`kgray backfill` of what lies at URLs: streamed, and resumed behind the last accepted row."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kgray.errors import InputError
from kgray.memory.backfill.inputs import find, submitted
from kgray.runtime.spec import as_environ
from kgray.settings import load
from tests.doors.shell import Shell
from tests.stand_in.s3 import Bucket, served

COUNT = 400  # rows of a file of 3 MB


@pytest.fixture
def bucket(kgray: Shell, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """Serve objects to a client that has a key in its environment, and does not try again for long."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-key")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    kgray.env["KGRAY_MODEL_BACKEND"] = "rules"
    with served() as server:
        yield server


def lines(*numbers: int, pad: int = 0) -> bytes:
    """Return rows as JSON Lines."""
    noted = {"note": "x" * pad} if pad else {}
    rows = ({"id": f"r{n}", "text": f"Ann has {n} cats.", "at": "2026-01-01"} | noted for n in numbers)
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def test_a_folder_of_a_bucket_is_read(kgray: Shell, bucket: Bucket) -> None:
    """Files of every format are found, each named by its URL; hidden ones and others are left out."""
    table = io.BytesIO()
    pq.write_table(pa.table({"id": ["p1", "p2"], "text": ["Bob moved.", "Bob came back."]}), table)
    bucket.objects = {
        "b/archive/one.jsonl": lines(1, 2),
        "b/archive/deep er/two.parquet": table.getvalue(),
        "b/archive/note.txt": b"Cleo writes.",
        "b/archive/.hidden.jsonl": lines(8),
        "b/archive/picture.png": b"no rows",
        "b/other.jsonl": lines(9),
    }

    done = kgray("backfill", bucket.url("b/archive"), "--group", "g", "--json")

    assert done.code == 0, done.err
    assert (done.json["accepted"], done.json["refused"]) == (5, 0)
    again = kgray("backfill", bucket.url("b/archive"), "--group", "g", "--json")
    assert (again.json["accepted"], again.json["report"]["skipped"]) == (0, 5)


def test_an_outage_in_the_middle_of_a_file_is_gone_on_after(kgray: Shell, bucket: Bucket) -> None:
    """Nothing counts as refused; the same command takes the rest, and no row twice."""
    bucket.objects = {"b/long.jsonl": lines(*range(COUNT), pad=8_000)}
    bucket.broken = 5 << 19

    stopped = kgray("backfill", bucket.url("b/long.jsonl"), "--group", "g", "--json")

    assert stopped.code == 75, stopped.err
    assert "s3://b/long.jsonl cannot be read now" in stopped.err + stopped.json["report"]["reason"]
    had = stopped.json["accepted"]
    assert 0 < had < COUNT
    bucket.broken = None
    done = kgray("backfill", bucket.url("b/long.jsonl"), "--group", "g", "--json")
    assert (done.code, done.json["accepted"], done.json["refused"]) == (0, COUNT - had, 0)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s3://me:secret@b/x.jsonl", "with a key in it"),
        ("s3://me:sec/ret@b/x.jsonl", "with a key in it"),
        ("gs://me:secret@b/x.jsonl", "with a key in it"),
        ("http://h/x.jsonl", "http:// is not read or written"),
        ("file:///no/such/file.jsonl", "/no/such/file.jsonl cannot be read"),
    ],
)
def test_what_is_not_taken_is_said_in_one_line(url: str, words: str, tmp_path) -> None:
    """A key never gets into the manifest: it is refused, and not repeated."""
    with pytest.raises(InputError, match=words) as refused:
        find([url], tmp_path)
    assert "ret@" not in str(refused.value)


def test_a_missing_object_is_said(bucket: Bucket, tmp_path) -> None:
    """As of a path that is not there."""
    bucket.objects = {"b/there.jsonl": lines(1)}
    with pytest.raises(InputError, match=r"s3://b/gone\.jsonl cannot be read: there is no such file"):
        find([bucket.url("b/gone.jsonl")], tmp_path)


def test_a_file_that_is_named_is_taken_whatever_its_name(bucket: Bucket, tmp_path) -> None:
    """As of a path; a partition's equals sign is another spelling in the URL that is kept."""
    bucket.objects = {"b/day=1/part-0": lines(1), "b/.kept=1/x.jsonl": lines(2)}
    assert [file.name for file in find([bucket.url("b/day=1/part-0")], tmp_path)] == ["s3://b/day%3D1/part-0"]
    assert len(find([bucket.url("b/.kept=1")], tmp_path)) == 1


def test_a_job_gets_urls_as_they_are_and_paths_absolute(tmp_path, monkeypatch) -> None:
    """So a job needs no path of the machine where it was submitted."""
    monkeypatch.chdir(tmp_path)
    assert submitted("s3://b/x?region=r") == "s3://b/x?region=r"
    assert submitted("x.jsonl") == str(tmp_path / "x.jsonl")
    assert submitted((tmp_path / "y z.jsonl").as_uri()) == str(tmp_path / "y z.jsonl")


def test_settings_go_with_a_job_as_variables(tmp_path: Path) -> None:
    """They say what the settings file says, without secrets and paths of this machine."""
    config = tmp_path / "kgray.toml"
    config.write_text(
        '[store]\nbackend = "neo4j"\nuri = "bolt://db:7687"\npassword = "hidden"\n'
        '[model]\nbackend = "openai"\nbase_url = "http://m/v1"\nname = "m"\nscript = "here.jsonl"\n'
        "[runtime]\nwindow = 64\n"
        '[ontology.relations.OWNS]\nsymmetric = false\ncardinality = "many"\n'
        '[ontology.entities.Person]\ndescription = "A human"\n'
    )

    environ = as_environ(load(config, environ={}))

    assert "hidden" not in str(environ)
    assert str(tmp_path) not in str(environ)
    theirs, ours = load(None, environ=environ), load(config, environ={})
    assert (theirs.runtime, theirs.ontology) == (ours.runtime, ours.ontology)
    assert (theirs.store.uri, theirs.model.name) == ("bolt://db:7687", "m")
