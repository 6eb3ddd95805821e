"""Input files to drafts: fields, refusals, formats; no file is loaded completely, none raises."""

from __future__ import annotations

import io
import json
import random
import tracemalloc
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kgray.domain import times
from kgray.domain.records import Draft
from kgray.domain.times import show
from kgray.errors import InputError
from kgray.io.intake import formats as reading
from kgray.io.intake.drafts import Defaults, Refusal, draft_from
from kgray.io.intake.files import MAX_PARAGRAPH, PIECE, Submitted, pieces, read_file, spooled

G = Defaults(group="g")
T = times.parse("2026-03-01T09:00:00Z")[0]


def read(
    tmp_path: Path, name: str, content: bytes | str, defaults: Defaults = G
) -> list[Submitted | Refusal]:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return list(read_file(path, defaults, name=name))


def brief(items: list[Submitted | Refusal]) -> list[tuple[int | None, str]]:
    """Line, and the text or the reason."""
    return [(i.line, i.draft.text if isinstance(i, Submitted) else f"! {i.field}: {i.reason}") for i in items]


# ----------------------------------------------------------------------------------- one row


def test_a_full_row_is_a_draft():
    row = {
        "text": "I work at Acme",
        "at": "2026-03-01T09:00:00Z",
        "id": "m1",
        "group": "team",
        "source": "chat",
        "speaker": "Alice  Nguyen",
        "kind": "message",
        "channel": "#general",
        "tags": ["a", 1, None],
    }
    assert draft_from(row) == Draft(
        group="team",
        source="chat",
        kind="message",
        text="I work at Acme",
        speaker="Alice Nguyen",
        reference_time=T,
        client_id="m1",
        metadata='{"channel":"#general","tags":["a",1,null]}',
    )


def test_alternative_field_names_are_read_and_main_names_take_precedence():
    row = {"content": "x", "timestamp": 1772355600, "role": "user"}
    assert draft_from(row, G) == Draft(
        group="g", source="default", kind="message", text="x", speaker="user", reference_time=T
    )
    both = draft_from({"text": "x", "content": "y", "speaker": "A", "role": "user"}, G)
    assert (both.text, both.speaker, both.metadata) == ("x", "A", '{"content":"y","role":"user"}')


def test_null_fields_take_the_default_options():
    defaults = Defaults(group="g", source="s", kind="text", at=T)
    row = {"text": "x", "at": None, "speaker": None, "id": None, "group": None, "source": None, "kind": None}
    assert draft_from(row, defaults) == Draft(group="g", source="s", kind="text", text="x", reference_time=T)


def test_a_row_with_a_speaker_is_a_message_by_default():
    assert draft_from({"text": "x", "speaker": "A"}, G).kind == "message"
    assert draft_from({"text": "x"}, G).kind == "text"


@pytest.mark.parametrize(
    "at",
    [1772355600, 1772355600.0, 1772355600000, "1772355600", "2026-03-01 09:00", "2026-03-01T10:00+01:00"],
)
def test_times_are_iso_or_epoch_seconds_or_milliseconds(at):
    assert draft_from({"text": "x", "at": at}, G).reference_time == T


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": "é"}, '{"a":"é","b":1}'),
        ([1, {"x": None}], '[1,{"x":null}]'),
        ("word", '"word"'),
        ('{"b": 1, "a": 2}', '{"a":2,"b":1}'),
        (0, "0"),
        (False, "false"),
    ],
)
def test_a_json_episode_stores_canonical_json(value, text):
    assert draft_from({"kind": "json", "text": value}, G).text == text


def test_an_integer_id_is_the_id_in_digits():
    assert draft_from({"text": "x", "id": 17}, G).client_id == "17"


REFUSED = [
    ([1], None, "not an object but a list"),
    ("x", None, "not an object but a text"),
    (None, None, "not an object but null"),
    (7, None, "not an object but a number"),
    ({}, "text", 'text is missing; if the row is a record, set kind to "json"'),
    ({"text": " \n"}, "text", "text is empty"),
    ({"content": ""}, "content", "content is empty"),
    ({"text": 5}, "text", 'text must be a text, not a number; for JSON set kind to "json"'),
    ({"text": "a\0b"}, "text", "text contains U+0000"),
    ({"text": "\ud800"}, "text", "text is not valid Unicode: it contains half of a surrogate pair"),
    (
        {"text": "x", "at": "soon"},
        "at",
        "at: 'soon' is not a time: use ISO 8601 (2026-03-01T09:00:00Z) or epoch seconds",
    ),
    ({"text": "x", "at": True}, "at", "at must be ISO 8601 or epoch seconds"),
    ({"text": "x", "timestamp": [1]}, "timestamp", "timestamp must be ISO 8601 or epoch seconds"),
    ({"text": "x", "at": "2026-13-01"}, "at", "at: '2026-13-01' is not a date: month must be in 1..12"),
    ({"text": "x", "kind": "mail"}, "kind", "kind 'mail' is none of message, text, json, triples"),
    ({"text": "x", "kind": 3}, "kind", "kind 'a number' is none of message, text, json, triples"),
    ({"text": "x", "group": "a b"}, "group", "group 'a b' is not a name: use 1 to 128 of A-Z a-z 0-9 _ . -"),
    ({"text": "x", "group": ""}, "group", "group '' is not a name: use 1 to 128 of A-Z a-z 0-9 _ . -"),
    ({"text": "x", "id": "i" * 257}, "id", "id has 257 characters: at most 256"),
    ({"text": "x", "id": ""}, "id", "id is empty"),
    ({"text": "x", "id": "a\nb"}, "id", "id contains a control character"),
    ({"text": "x", "id": 1.5}, "id", "id must be a text, not a number"),
    ({"text": "x", "source": "a\x07"}, "source", "source contains a control character"),
    ({"text": "x", "source": ""}, "source", "source is empty"),
    ({"text": "x", "speaker": " "}, "speaker", "speaker is empty"),
    ({"text": "x", "role": "a\x00"}, "role", "role contains a control character"),
    ({"text": "x", "speaker": ["A"]}, "speaker", "speaker must be a text, not a list"),
    ({"text": "x", "extra": float("nan")}, "extra", "extra holds nan, which is no number"),
    (
        {"text": "x", "extra": "\ud800"},
        "extra",
        "extra is not valid Unicode: it contains half of a surrogate pair",
    ),
    ({"text": "x", "extra": 10**500}, "extra", "extra holds a number of more than 400 digits"),
    ({"kind": "json", "text": {}}, "text", "text is empty"),
    (
        {"kind": "json", "text": "{"},
        "text",
        (
            "text is not usable JSON: not valid JSON: "
            "Expecting property name enclosed in double quotes at character 2"
        ),
    ),
    ({"kind": "json"}, "text", 'text is missing; if the row is a record, set kind to "json"'),
    ({"kind": "triples"}, "triples", "triples are missing"),
    ({"kind": "triples", "triples": []}, "triples", "the list of triples is empty"),
    ({"text": "x", "triples": [{}]}, "triples", 'triples are for kind "triples", and this is a text'),
]


@pytest.mark.parametrize(("row", "field", "reason"), REFUSED)
def test_an_invalid_line_is_refused_with_field_and_reason(row, field, reason):
    with pytest.raises(InputError) as caught:
        draft_from(row, G)
    assert (caught.value.field, str(caught.value)) == (field, reason)


def test_a_row_without_group_and_no_default_is_refused():
    with pytest.raises(InputError) as caught:
        draft_from({"text": "x"})
    reason = "no group: name it in the row, or for all rows"
    assert (caught.value.field, str(caught.value)) == ("group", reason)


def test_deeply_nested_values_are_refused():
    deep: object = 1
    for _ in range(70):
        deep = [deep]
    with pytest.raises(InputError, match="nested more than 64 deep"):
        draft_from({"text": "x", "extra": deep}, G)


# ------------------------------------------------------------------------------------ triples


def test_triples_become_canonical_json():
    row = {
        "at": T // times.SECOND,
        "triples": [
            {"source": "Alice", "relation": "works at", "target": "Acme", "valid_at": "2018", "note": "HR"},
            {
                "source": "Mug",
                "relation": "COSTS",
                "target": {"value": 9.50, "unit": "eur"},
                "valid_at": None,
            },
            {"source": "Alice", "relation": "IS_ADMIN", "target": True, "denied": True},
        ],
    }
    draft = draft_from(row, G)
    assert draft.kind == "triples"
    assert json.loads(draft.text) == [
        {"source": "Alice", "relation": "WORKS_AT", "target": "Acme", "valid_at": "2018", "note": "HR"},
        {
            "source": "Mug",
            "relation": "COSTS",
            "value": {"type": "number", "value": "9.5", "unit": "EUR"},
            "valid_at": None,
        },
        {
            "source": "Alice",
            "relation": "IS_ADMIN",
            "value": {"type": "boolean", "value": "true", "unit": None},
            "denied": True,
        },
    ]


GOOD = {"source": "A", "relation": "KNOWS", "target": "B"}


@pytest.mark.parametrize(
    ("change", "field", "reason"),
    [
        ({"source": ""}, "triples[0].source", "triples[0].source is an empty name"),
        ({"source": None}, "triples[0].source", "triples[0].source must be a text"),
        ({"target": "B\x00"}, "triples[0].target", "triples contains U+0000"),
        ({"target": "B\x01"}, "triples[0].target", "triples[0].target contains a control character"),
        ({"target": None}, "triples[0].target", "triples[0].target is missing"),
        ({"target": {}}, "triples[0].target", 'triples[0].target is an object without "value"'),
        ({"target": "a"}, "triples[0].target", "triples[0]: source and target are the same name"),
        (
            {"relation": "--"},
            "triples[0].relation",
            "triples[0].relation: '--' names no relation: it has no letter",
        ),
        (
            {"valid_at": "2026-01-02", "invalid_at": "2026-01-02"},
            "triples[0].invalid_at",
            "triples[0]: the end is not after the start 2026-01-02T00:00:00.000000Z",
        ),
        (
            {"invalid_at": "2020"},
            "triples[0].invalid_at",
            "triples[0]: the end is not after the start 2026-03-01T09:00:00.000000Z",
        ),
        (
            {"valid_at": "x"},
            "triples[0].valid_at",
            "triples[0].valid_at: 'x' is not a time: use ISO 8601 (2026-03-01T09:00:00Z) or epoch seconds",
        ),
        ({"denied": "yes"}, "triples[0].denied", "triples[0].denied must be true or absent"),
        ({"text": 1}, "triples[0].text", "triples[0].text must be a text without U+0000"),
    ],
)
def test_a_faulty_triple_is_refused_with_its_place(change, field, reason):
    with pytest.raises(InputError) as caught:
        draft_from({"triples": [GOOD | change], "at": "2026-03-01T09:00:00Z"}, G)
    assert str(caught.value) == reason
    assert caught.value.field in (field, "triples")


# ------------------------------------------------------------------------------------ formats


LINES = '\ufeff{"text": "a"}\n\n  \r\n{"text": "b"}\r\n{"text": 1}\nnot json\n{"text": "c"}'


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.json", "a.log", "a"])
def test_json_lines_ignore_a_bom_and_blank_lines(tmp_path, name):
    assert brief(read(tmp_path, name, LINES)) == [
        (1, "a"),
        (4, "b"),
        (5, '! text: text must be a text, not a number; for JSON set kind to "json"'),
        (6, "! None: not valid JSON: Expecting value at character 1"),
        (7, "c"),
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": "\xff"}', "! None: not valid UTF-8 at byte 11"),
        (b'{"text": NaN}', "! None: NaN is not JSON"),
        (b'{"text": "x", "n": 1e999}', "! None: the number 1e999 is too large"),
        (b'{"text": "x", "n": ' + b"9" * 5000 + b"}", "! None: a number of more than 400 digits"),
        (b'{"text": "x", "text": "y"}', "! text: the name 'text' stands twice in one object"),
        (b'{"text": "\\ud800"}', "! text: text is not valid Unicode: it contains half of a surrogate pair"),
        (b'{"a":' * 100_000, "! None: nested too deep"),
        (b'{"text": "x"', "! None: not valid JSON: Expecting ',' delimiter at character 13"),
        (b'{"text": "x"} {}', "! None: not valid JSON: Extra data at character 15"),
    ],
)
def test_a_hostile_line_is_refused_and_the_next_line_is_read(tmp_path, line, reason):
    assert brief(read(tmp_path, "a.jsonl", line + b'\n{"text": "next"}\n')) == [(1, reason), (2, "next")]


def test_a_very_long_line_is_refused_without_being_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "MAX_LINE", 1 << 20)
    path = tmp_path / "a.jsonl"
    with path.open("wb") as file:
        file.write(b'{"text": "a"}\n')
        for _ in range(40):
            file.write(b"x" * (1 << 20))
        file.write(b'\n{"text": "b"}\n')
    tracemalloc.start()
    result = brief(list(read_file(path, G)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert result == [(1, "a"), (2, "! None: longer than 1 MiB"), (3, "b")]
    assert peak < 8 << 20


def test_an_array_is_streamed_with_the_lines_of_its_items(tmp_path):
    text = '\n [\n  {"text": "a"},\n  {"text":\n "b"}, 3,\n {"text": "c", "x": 1, "x": 2}, {"text": "d"}\n]\n'
    expected = [
        (3, "a"),
        (4, "b"),
        (5, "! None: not an object but a number"),
        (6, "! x: the name 'x' stands twice in one object"),
        (6, "d"),
    ]
    assert brief(read(tmp_path, "a.json", text)) == expected
    assert brief(read(tmp_path, "a", text)) == expected
    assert brief(read(tmp_path, "empty.json", "[ ]")) == []


def test_a_broken_array_yields_its_first_items_and_reports_the_unread_rest(tmp_path):
    assert brief(read(tmp_path, "a.json", '[{"text": "a"},\n{"text": oops}, {"text": "b"}]')) == [
        (1, "a"),
        (2, "! None: not valid JSON (Expecting value); the rest of the file was not read"),
    ]
    assert brief(read(tmp_path, "b.json", '[{"text": "a"}')) == [
        (1, "a"),
        (1, "! None: not valid JSON: the array does not end; the rest of the file was not read"),
    ]


def test_a_long_array_is_not_loaded_into_memory(tmp_path):
    path = tmp_path / "a.json"
    with path.open("w") as file:
        file.write("[")
        for i in range(8_000):
            file.write(("," if i else "") + json.dumps({"text": "word " * 60, "i": i}) + "\n")
        file.write("]")
    tracemalloc.start()
    count = sum(isinstance(item, Submitted) for item in read_file(path, G))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 8_000
    assert peak < 2 << 20


def test_csv_reads_the_header_as_fields_and_empty_cells_as_absent(tmp_path):
    text = (
        "\ufefftext,at,speaker,id,group,note\r\n"
        '"I moved,\nto Berlin",2026-03-01T09:00:00Z,Alice,1,,x\r\n'
        "\r\n"
        "Hello,,,2,other,\r\n"
        ",,,3,,\r\n"
        "a,b,c,d,e,f,g\r\n"
        "short\r\n"
    )
    items = read(tmp_path, "a.csv", text)
    assert brief(items) == [
        (2, "I moved,\nto Berlin"),
        (5, "Hello"),
        (6, '! text: text is missing; if the row is a record, set kind to "json"'),
        (7, "! None: 7 cells under a header of 6 names"),
        (8, "short"),
    ]
    first, second = (item.draft for item in items[:2])
    assert (first.speaker, first.kind, first.reference_time, first.group, first.metadata) == (
        "Alice",
        "message",
        T,
        "g",
        '{"note":"x"}',
    )
    assert (second.speaker, second.kind, second.reference_time, second.group) == (None, "text", None, "other")


def test_csv_cells_may_hold_json_and_triples(tmp_path):
    cell = '"[{""source"": ""A"", ""relation"": ""KNOWS"", ""target"": ""B""}]"'
    items = read(tmp_path, "a.csv", f'kind,text,triples\njson,"{{""b"": 1}}",\ntriples,,{cell}\n')
    assert brief(items) == [(2, '{"b":1}'), (3, '[{"relation":"KNOWS","source":"A","target":"B"}]')]


def test_broken_csv_records_are_refused_one_by_one(tmp_path):
    assert brief(read(tmp_path, "a.csv", b'text,id\ngood,1\nb\xffd,2\n"a"b,3\nfine,4\n')) == [
        (2, "good"),
        (3, "! None: not valid UTF-8"),
        (4, "! None: not valid CSV: ',' expected after '\"'"),
        (5, "fine"),
    ]
    assert brief(read(tmp_path, "b.csv", "text,text\na,b\n")) == [
        (1, "! None: the header names 'text' twice; the file was not read")
    ]


def test_tab_separated_values_are_read(tmp_path):
    assert brief(read(tmp_path, "a.tsv", "text\tid\na, b\t1\n")) == [(2, "a, b")]


def test_parquet_is_read_in_batches_with_nulls_absent(tmp_path):
    path = tmp_path / "a.parquet"
    table = pa.table(
        {
            "text": ["a", None, "c", "d"],
            "at": pa.array([datetime(2026, 3, 1, 9, tzinfo=UTC)] * 4, pa.timestamp("ns", "UTC")),
            "speaker": ["Alice", None, None, "Bob"],
            "day": [date(2026, 1, 2), None, None, None],
            "price": pa.array([Decimal("1.50"), None, None, None], pa.decimal128(5, 2)),
            "score": [float("nan"), 1.0, 2.0, float("inf")],
        }
    )
    pq.write_table(table, path)
    items = list(read_file(path, G, name="a.parquet"))
    assert brief(items) == [
        (1, "a"),
        (2, '! text: text is missing; if the row is a record, set kind to "json"'),
        (3, "c"),
        (4, "! score: score holds inf, which is no number"),
    ]
    assert items[0].draft == Draft(
        group="g",
        source="default",
        kind="message",
        text="a",
        speaker="Alice",
        reference_time=T,
        metadata='{"day":"2026-01-02","price":"1.50"}',
    )


def test_parquet_lists_of_structs_are_triples(tmp_path):
    path = tmp_path / "a.parquet"
    triple = {"source": "A", "relation": "KNOWS", "target": "B", "valid_at": None}
    pq.write_table(
        pa.Table.from_pylist([{"triples": [triple]}, {"triples": [triple | {"valid_at": "2018"}]}]), path
    )
    assert brief(list(read_file(path, G))) == [
        (1, '[{"relation":"KNOWS","source":"A","target":"B"}]'),
        (2, '[{"relation":"KNOWS","source":"A","target":"B","valid_at":"2018"}]'),
    ]


def test_a_broken_parquet_file_gets_one_refusal(tmp_path):
    for content in (b"PAR1 nonsense", b"", b"PAR1" + b"\0" * 100 + b"PAR1"):
        (refusal,) = read(tmp_path, "a.parquet", content)
        assert isinstance(refusal, Refusal)
        assert refusal.line is None
        assert "not readable as Parquet" in refusal.reason


def test_a_missing_file_is_a_refusal_of_the_file(tmp_path):
    assert list(read_file(tmp_path / "no.jsonl", G, name="no.jsonl")) == [
        Refusal(file="no.jsonl", line=None, field=None, reason="cannot be read: No such file or directory")
    ]


def test_a_stream_is_spooled_to_a_temporary_file():
    with spooled(io.BytesIO(b'{"text": "a"}')) as path:
        assert brief(list(read_file(path, G, name="-"))) == [(1, "a")]
    assert not path.exists()


# -------------------------------------------------------------------------------------- texts


def test_a_text_file_is_one_source_of_ordered_pieces_with_offsets(tmp_path):
    paragraphs = [f"Paragraph {i}. " + "More words here. " * 30 for i in range(8)]
    text = "\ufeff\n" + "\n \n".join(paragraphs) + "\n"
    items = read(tmp_path, "notes.md", text)
    drafts = [item.draft for item in items]
    assert {(d.source, d.kind, d.speaker, d.reference_time) for d in drafts} == {
        ("notes.md", "text", None, None)
    }
    assert [d.client_id for d in drafts] == [f"notes.md#{n}" for n in range(1, len(drafts) + 1)]
    assert all(item.whole for item in items)
    assert [d.text for d in drafts] == [
        "\n\n".join(p.strip() for p in paragraphs[i : i + 2]) for i in range(0, 8, 2)
    ]
    for number, draft in enumerate(drafts, 1):
        metadata = json.loads(draft.metadata)
        start, end = metadata["characters"]
        assert metadata["part"] == number
        assert text.removeprefix("\ufeff")[start:end].split() == draft.text.split()
    assert read(tmp_path, "notes.md", text) == items


def test_a_text_file_of_a_named_source_keeps_its_own_ids(tmp_path):
    (item,) = read(tmp_path, "a.txt", "Hello.", Defaults(group="g", source="manual", kind="message", at=T))
    assert item.draft == Draft(
        group="g",
        source="manual",
        kind="text",
        text="Hello.",
        client_id="manual/a.txt#1",
        reference_time=T,
        metadata='{"characters":[0,6],"part":1}',
    )


@pytest.mark.parametrize(
    ("content", "field"), [(b"", "text"), (b" \n\n ", "text"), (b"caf\xe9 au lait", None)]
)
def test_a_text_file_without_text_is_refused(tmp_path, content, field):
    (refusal,) = read(tmp_path, "a.txt", content)
    assert isinstance(refusal, Refusal)
    assert refusal.field == field


@pytest.mark.parametrize("seed", range(5))
def test_pieces_have_every_word_once_in_order_within_their_bounds(seed):
    rng = random.Random(seed)
    text = "".join(
        rng.choice(
            ["word", " ", "\n", "\n\n", ". ", "日本語。", "\r\n\r\n", "x" * rng.choice([1, 50, 20_000])]
        )
        for _ in range(rng.randrange(3000))
    )
    result = list(pieces(io.BytesIO(text.encode())))
    assert "".join("".join(p.text.split()) for p in result) == "".join(text.split())
    end = 0
    for piece in result:
        assert end <= piece.start < piece.end
        assert "".join(text[piece.start : piece.end].split()) == "".join(piece.text.split())
        assert piece.line == 1 + text.count("\n", 0, piece.start)
        assert piece.end - piece.start <= max(PIECE, MAX_PARAGRAPH)
        end = piece.end


# --------------------------------------------------------------------------------------- fuzz


def hostile_line(rng: random.Random) -> bytes:
    """Return a line that is sometimes a row, mostly nearly one."""
    values = [
        "Alice works at Acme",
        "",
        " ",
        "\0",
        "\ud800",
        "\u202eabc",
        "日本",
        "🙂" * 9,
        "a" * 300,
        0,
        -1,
        10**30,
        1.5,
        True,
        None,
        [],
        {},
        [[1]],
        {"a": {"b": []}},
        "2026-03-01",
        "1e400",
        1e308,
        "message",
        "triples",
        "json",
        "g",
        "a b",
        [{"source": "A", "relation": "KNOWS", "target": "B"}],
        [{"source": "A"}],
        [1],
    ]
    names = [
        *"text content at timestamp id group source speaker role kind triples extra".split(),
        "",
        "\0",
        "x" * 99,
    ]
    row = {rng.choice(names): rng.choice(values) for _ in range(rng.randrange(6))}
    if rng.random() < 0.7:
        row.setdefault("text", "Alice works at Acme")
    line = (
        json.dumps(row, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass").replace(b"\n", b" ")
    )
    if rng.random() < 0.4:
        cut = bytearray(line)
        for _ in range(rng.randrange(1, 4)):
            place = rng.randrange(len(cut) + 1)
            cut[place : place + rng.randrange(3)] = bytes(rng.randrange(256) for _ in range(rng.randrange(3)))
        line = bytes(cut)
    return line.replace(b"\n", b" ").replace(b"\r", b" ")


def test_ten_thousand_hostile_lines_are_each_a_draft_or_a_refusal(tmp_path):
    rng = random.Random(20260301)
    lines = [hostile_line(rng) for _ in range(10_000)]
    items = read(tmp_path, "a.jsonl", b"\n".join(lines))
    lines_with_text = [number for number, line in enumerate(lines, 1) if line.strip()]
    assert [item.line for item in items] == lines_with_text
    drafts = [item.draft for item in items if isinstance(item, Submitted)]
    assert 500 < len(drafts) < 9_500
    for draft in drafts:
        assert len(draft.id) == 36
        assert json.loads(draft.metadata) is not None
        assert draft.text.strip()
        assert "\0" not in draft.text
    for item in items:
        if isinstance(item, Refusal):
            assert item.reason
            assert "\n" not in item.reason
            item.reason.encode()


@pytest.mark.parametrize("name", ["a.json", "a", "a.csv", "a.txt", "a.tsv", "a.parquet"])
@pytest.mark.parametrize("seed", range(15))
def test_hostile_files_of_any_format_raise_no_exception(tmp_path, name, seed):
    rng = random.Random(seed)
    content = b",\n".join(hostile_line(rng) for _ in range(50))
    for prefix in (b"", b"[", b"text,id\n", b"\xef\xbb\xbf", b"\xff\xfe"):
        for item in read(tmp_path, name, prefix + content):
            assert isinstance(item, Submitted | Refusal)


# ------------------------------------------------------------------------------------ records


@pytest.mark.parametrize(
    ("name", "text", "kind", "content"),
    [
        ("a.csv", "id,name,kind\n7,Desk,oak\n", "json", {"id": "7", "kind": "oak", "name": "Desk"}),
        ("a.csv", "id,text,name\n7,Hi,Desk\n", "text", None),
        ("a.csv", "id,content\n7,\n", None, None),
        ("a.json", '{\n "id": 7,\n "role": "CTO"\n}\n', "json", {"id": 7, "role": "CTO"}),
        ("a.json", '{\n "text": "Hi",\n "id": 7\n}', "text", None),
        ("a.json", '{"id": 7, "role": "CTO"}', None, None),
        (
            "a.jsonl",
            '{"kind": "json", "id": 7, "source": "Web", "x": 1}',
            "json",
            {"id": 7, "source": "Web", "x": 1},
        ),
        ("a.jsonl", '{"kind": "json", "id": 7}', None, None),
    ],
)
def test_tables_without_text_and_multi_line_objects_are_records(tmp_path, name, text, kind, content):
    """None: refused. A record's content is its fields, also its `id`; a row with a text keeps its text."""
    path = tmp_path / name
    path.write_text(text)
    [item] = read_file(path, Defaults(group="g"))
    if kind is None:
        assert isinstance(item, Refusal)
        return
    assert isinstance(item, Submitted)
    assert item.draft.kind == kind
    if content is not None:
        assert (json.loads(item.draft.text), item.draft.client_id, item.draft.source) == (
            content,
            None,
            "default",
        )


@pytest.mark.parametrize(
    ("row", "at"),
    [
        ({"at": "2026-01-01", "updated_at": "2026-02-02"}, "2026-01-01"),
        ({"updated_at": "2026-02-02T10:00:00Z", "modified": "x"}, "2026-02-02"),
        ({"updated_at": "last week", "last_modified": "2026-03-03"}, "2026-03-03"),
        ({"created_at": "2026-03-03"}, None),
    ],
)
def test_a_record_is_dated_by_its_time_or_its_last_change(row, at):
    draft = draft_from({"kind": "json", "name": "Desk", "group": "g", **row})
    assert (show(draft.reference_time) or "")[:10] == (at or "")


def test_a_record_gets_its_table_name_from_its_file(tmp_path):
    for name, table in (
        ("products-export-2026-03.csv", "products"),
        ("data.csv", None),
        ("CRM Accounts.csv", "crm_accounts"),
    ):
        path = tmp_path / name
        path.write_text("id,name\n7,Desk\n")
        [item] = read_file(path, Defaults(group="g"))
        assert json.loads(item.draft.metadata).get("table") == table


def test_multi_line_values_are_read_until_a_broken_value(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{\n "text": "a"\n}\n{\n "text": "b"\n}\n{\n "text": \n}\n')
    items = list(read_file(path, Defaults(group="g")))
    assert [(item.line, getattr(item, "reason", "")[:14]) for item in items] == [
        (1, ""),
        (4, ""),
        (7, "not valid JSON"),
    ]
