"""A model's text as JSON: the content of a cut reply, and the cost of a text of brackets (R24)."""

from __future__ import annotations

import json

import pytest

from kgray.models.openai_api.structured import breaks_off, read_object, salvage

KEYS = ("entities", "facts")
ENTITIES = [{"name": "Ann }] Bell", "type": "Person"}, {"name": 'the "{x}" team', "type": ""}]
FACTS = [
    {"source": 0, "fact": "a ] b } c", "value": {"type": "text", "value": "[}", "unit": None}},
    {"source": 1, "fact": "\\", "value": None},
]
REPLY = json.dumps({"entities": ENTITIES, "facts": FACTS})


def ends_of(items: list[dict]) -> list[int]:
    """Return where each item ends in the reply."""
    return [REPLY.index(text) + len(text) for text in map(json.dumps, items)]


@pytest.mark.parametrize(
    "around", ["{}", "<think>{{ [</think> {}", "```json\n{}"], ids=["bare", "think", "fence"]
)
def test_a_truncated_reply_keeps_exactly_its_complete_items(around):
    """Brackets inside a string do not count, at any cut."""
    head_length = len(around.format(""))
    for cut in range(len(REPLY)):
        entities = [item for item, end in zip(ENTITIES, ends_of(ENTITIES), strict=True) if end <= cut]
        facts = [item for item, end in zip(FACTS, ends_of(FACTS), strict=True) if end <= cut]

        result = salvage(around.format(REPLY)[: head_length + cut], KEYS)

        assert result == ({"entities": entities, "facts": facts} if entities else None), REPLY[:cut]


def test_a_reply_with_an_incomplete_object_is_truncated():
    ended = [cut for cut in range(1, len(REPLY) + 1) if not breaks_off(REPLY[:cut])]

    assert ended == [len(REPLY)]
    assert not breaks_off("no object")
    assert not breaks_off("{not json} and more")


def test_the_last_object_with_the_wanted_keys_is_the_reply():
    drafts = '{"entities": [], "facts": []} no: {"a": 1} {I} ' + REPLY + " {that is all"

    assert read_object(drafts, KEYS) == {"entities": ENTITIES, "facts": FACTS}
    assert read_object('{"a": 1} {"b": 2}', KEYS) == {"a": 1}
    assert read_object('{"entities": NaN}', KEYS) is None


@pytest.mark.parametrize(
    "text", ["{" * 50_000, "[" * 50_000, '{"a":' * 20_000, '{"entities":[{"a":"' + "}" * 50_000]
)
def test_a_text_of_brackets_is_not_a_reply(text):
    """Reading takes no quadratic time: with it, this test would not end soon."""
    assert (read_object(text, KEYS), salvage(text, KEYS)) == (None, None)
    assert not breaks_off("[" + text.replace("{", "["))
