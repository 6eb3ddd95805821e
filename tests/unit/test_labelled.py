"""The labelled messages: their format, and the set that ships."""

from __future__ import annotations

import json
from collections import Counter
from datetime import date, timedelta

import pytest

from bench.labelled_set.details import compared_details
from bench.labelled_set.facts import ReadFact
from bench.labelled_set.files import SHIPPED_SET, load_set
from bench.labelled_set.labels import CONTEXT, Conversation, LabelledFact
from bench.labelled_set.pairing import paired
from bench.labelled_set.shares import Counts
from bench.labelled_set.spelling import normal_name
from kgray.errors import InputError

HEADER = {
    "conversation": "a",
    "part": "development",
    "entities": {"ada": {"type": "Person", "names": ["Ada"]}},
}
FACT = {"subject": ["@ada"], "object": ["the cello"], "cues": ["play"], "status": ["current"]}
MESSAGE = {
    "id": "a-1", "kind": "message", "at": "2026-01-05T09:00:00Z", "speaker": "Ada",
    "text": "I play the cello", "mentions": ["ada"], "facts": [FACT],
}  # fmt: skip


def written(tmp_path, *rows):
    path = tmp_path / "set.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_a_file_gives_its_conversations_with_the_names_of_both_ends(tmp_path):
    (conversation,) = load_set(written(tmp_path, HEADER, MESSAGE))

    (message,) = conversation.messages
    (label,) = message.facts
    assert (conversation.id, conversation.part, message.speaker) == ("a", "development", "Ada")
    assert label.subject.accepts("ADA")
    assert label.object.accepts("cello")
    assert not label.object.accepts("Ada")


def test_a_record_may_be_an_object_or_its_json(tmp_path):
    record = {"name": "Ada", "instrument": "cello"}
    rows = [
        {**MESSAGE, "id": f"a-{n}", "kind": "json", "text": t}
        for n, t in enumerate([record, json.dumps(record)])
    ]

    (conversation,) = load_set(written(tmp_path, HEADER, *rows))

    assert [message.text for message in conversation.messages] == [record, record]
    assert json.loads(conversation.messages[0].rendered) == record


def test_a_part_and_a_limit_choose_messages(tmp_path):
    second = {**HEADER, "conversation": "b", "part": "kept"}
    rows = [HEADER, MESSAGE, {**MESSAGE, "id": "a-2"}, second, {**MESSAGE, "id": "b-1"}]
    path = written(tmp_path, *rows)

    def ids(part, limit=None):
        return [message.id for item in load_set(path, part, limit) for message in item.messages]

    assert ids("all") == ["a-1", "a-2", "b-1"]
    assert ids("kept") == ["b-1"]
    assert ids("all", 1) == ["a-1"]
    assert ids("all", 3) == ["a-1", "a-2", "b-1"]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        pytest.param({**MESSAGE, "kind": "mail"}, "kind 'mail' is none of message, text, json", id="kind"),
        pytest.param({**MESSAGE, "at": "Monday"}, "Monday", id="time"),
        pytest.param({**MESSAGE, "mentions": ["bob"]}, "'bob' is not an entity", id="mention"),
        pytest.param(
            {**MESSAGE, "facts": [{**FACT, "subject": ["@bob"]}]}, "'bob' is not an entity", id="end"
        ),
        pytest.param({**MESSAGE, "facts": [{**FACT, "subject": "@ada"}]}, "are lists", id="end-is-no-list"),
        pytest.param({**MESSAGE, "facts": [{**FACT, "cues": []}]}, "at least one cue", id="no-cue"),
        pytest.param({**MESSAGE, "facts": [{**FACT, "status": ["now"]}]}, "status 'now'", id="status"),
        pytest.param(
            {**MESSAGE, "facts": [{**FACT, "start": "May"}]}, "start 'May' is not a date", id="date"
        ),
        pytest.param({**MESSAGE, "facts": [{**FACT, "end": "2026-13"}]}, "month", id="month"),
        pytest.param({**MESSAGE, "ends": [{**FACT, "ending": "over"}]}, "ending 'over'", id="ending"),
        pytest.param({"kind": "message"}, "the field 'at' is missing", id="missing"),
        pytest.param({**MESSAGE, "id": "a"}, "the id 'a' is taken", id="taken"),
        pytest.param(["a-1"], "line 2", id="no-object"),
    ],
)
def test_an_error_names_the_line_and_the_field(tmp_path, row, reason):
    with pytest.raises(InputError) as caught:
        load_set(written(tmp_path, HEADER, row))

    assert "line 2" in str(caught.value)
    assert reason in str(caught.value)


def test_a_conversation_needs_a_valid_group_name(tmp_path):
    with pytest.raises(InputError, match="line 1: group 'a b' is not a name"):
        load_set(written(tmp_path, {**HEADER, "conversation": "a b"}))


def test_invalid_labelled_sets_are_refused(tmp_path):
    with pytest.raises(InputError, match="before the first message"):
        load_set(written(tmp_path, MESSAGE))
    with pytest.raises(InputError, match="no message of the part 'kept'"):
        load_set(written(tmp_path, HEADER, MESSAGE), "kept")
    with pytest.raises(InputError, match="cannot be read"):
        load_set(tmp_path / "missing.jsonl")


# ------------------------------------------------------------------------- the set that ships

SHIPPED = load_set(SHIPPED_SET)
MESSAGES = [(conversation, message) for conversation in SHIPPED for message in conversation.messages]


def has(text: str, names) -> bool:
    """Return whether a normalised text contains a name as whole words."""
    return any(f" {normal_name(name)} " in f" {text} " for name in names)


def full_text(*messages) -> str:
    return normal_name(" . ".join(f"{message.rendered} . {message.speaker or ''}" for message in messages))


def required(conversations):
    return [
        fact
        for conversation in conversations
        for message in conversation.messages
        for fact in message.facts
        if not fact.optional
    ]


def test_the_parts_have_the_size_and_the_mix_that_the_pages_state():
    parts = {part: load_set(SHIPPED_SET, part) for part in ("development", "kept")}
    counts = {
        part: (sum(len(item.messages) for item in conversations), len(required(conversations)))
        for part, conversations in parts.items()
    }

    assert counts == {"development": (91, 164), "kept": (45, 87)}
    for conversations in parts.values():
        messages = [message for item in conversations for message in item.messages]
        silent = sum(all(fact.optional for fact in message.facts) for message in messages)
        assert 0.2 <= silent / len(messages) <= 0.3
        assert {message.kind for message in messages} == {"message", "text", "json"}
        statuses = Counter(fact.statuses[0] for fact in required(conversations))
        assert set(statuses) >= {"current", "ended", "event"}
        assert sum(bool(fact.start or fact.end) for fact in required(conversations)) >= 0.3 * len(
            required(conversations)
        )
        assert {label.ending for message in messages for label in message.ends} == {"ended", "denied"}


def test_messages_have_a_realistic_length_and_rising_times():
    for conversation in SHIPPED:
        times = [message.at for message in conversation.messages]
        assert times == sorted(times)
        for message in conversation.messages:
            assert len(message.rendered) < 500


def test_every_mention_is_named_in_its_message():
    silent = [
        (message.id, id_)
        for conversation, message in MESSAGES
        for id_ in message.mentions
        if not has(full_text(message), conversation.entities[id_].names)
    ]

    assert silent == []


def test_every_name_occurs_in_its_conversation():
    silent = [
        (conversation.id, name)
        for conversation in SHIPPED
        for entity in conversation.entities.values()
        for name in entity.names
        if not has(full_text(*conversation.messages), [name])
    ]

    assert silent == []


def test_both_ends_of_every_fact_are_named_in_the_message_or_shortly_before():
    silent = []
    for conversation in SHIPPED:
        for at, message in enumerate(conversation.messages):
            text = full_text(*conversation.messages[max(0, at - CONTEXT) : at + 1])
            for fact in message.facts:
                for end in (fact.subject, fact.object):
                    if not has(text, [*end.names, *end.values]):
                        silent.append((message.id, end.entities, end.values))

    assert silent == []


def test_names_distinguish_the_entities_of_a_message():
    """A mention must belong to one label, else the pairs of mentions cannot be counted."""
    shared = []
    for conversation, message in MESSAGES:
        names = Counter(name for id_ in message.mentions for name in conversation.entities[id_].accepted)
        shared += [(message.id, name) for name, count in names.items() if count > 1]

    assert shared == []


def test_stated_dates_are_near_their_message():
    for _, message in MESSAGES:
        day = date.fromisoformat(message.at[:10])
        for fact in message.facts:
            if fact.start and fact.end:
                assert fact.start <= fact.end
            for stated in (fact.start, fact.end):
                if stated and len(stated) == 10:
                    assert abs(date.fromisoformat(stated) - day) <= timedelta(days=400), message.id


def test_every_end_refers_to_a_fact_of_an_earlier_message():
    """A label that ends nothing could never be recalled."""
    unknown = []
    for conversation in SHIPPED:
        stated: list[LabelledFact] = []
        for message in conversation.messages:
            for label in message.ends:
                if not any(_meets(label, fact) for fact in stated):
                    unknown.append((message.id, label.subject.entities, label.object.values))
            stated += message.facts

    assert unknown == []


def _meets(label: LabelledFact, fact: LabelledFact) -> bool:
    """Return whether a label of an end can match the facts that match an earlier label."""

    def shared(first, second) -> bool:
        return bool(first.names & second.names) or any(map(first.accepts, second.values))

    straight = shared(label.subject, fact.subject) and shared(label.object, fact.object)
    exchanged = shared(label.subject, fact.object) and shared(label.object, fact.subject)
    return (straight or exchanged) and not set(label.cues).isdisjoint(fact.cues)


def perfect(conversation: Conversation, fact: LabelledFact) -> ReadFact:
    """Return the fact that a perfect reader lists for a label."""

    def name(end) -> str:
        return conversation.entities[end.entities[0]].names[0] if end.entities else end.values[0]

    return ReadFact(
        subject=name(fact.subject),
        object=name(fact.object),
        relation=fact.cues[0],
        text="",
        status=fact.statuses[0],
        start=fact.start,
        end=fact.end,
    )


def test_a_perfect_reader_gets_full_scores():
    total = Counts()
    for conversation, message in MESSAGES:
        facts = [perfect(conversation, fact) for fact in message.facts if not fact.optional]
        scored = paired(message.facts, facts, message.at)
        total += scored.counts
        for label, fact in scored.pairs:
            details = compared_details(message.facts[label], facts[fact], message.at)
            assert details.status_right == 1, message.id
            assert (details.dates_right, details.false_dates) == (details.dates, 0), message.id

    assert total == Counts(right=251, wrong=0, missed=0)
