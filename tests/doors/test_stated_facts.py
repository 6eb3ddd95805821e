"""R18 at the command line: the output of search, context and history is true at each moment."""

from __future__ import annotations

from typing import Any

import pytest

TOM = "Tom Okafor"
# id: the time, the text, and the facts that a model extracts.
MESSAGES: dict[str, tuple[str, str, list[dict[str, Any]]]] = {
    "m1": (
        "2026-01-05",
        "I work at Acme as a designer.",
        [
            {"relation": "WORKS_AT", "target": "Acme", "fact": "Tom works at Acme as a designer"},
            {"relation": "HAS_ROLE", "value": "designer", "fact": "Tom works at Acme as a designer"},
        ],
    ),
    "m2": (
        "2026-03-02",
        "I quit my job at Acme last Friday.",
        [{"relation": "WORKS_AT", "target": "Acme", "fact": "Tom quit his job at Acme", "kind": "ended",
          "invalid_at": "2026-02-27"}],
    ),
    "m3": (
        "2026-05-20",
        "I sold my house in Munich in April.",
        [{"relation": "OWNS", "target": "house in Munich", "fact": "Tom sold his house in Munich",
          "kind": "ended", "invalid_at": "2026-04"}],
    ),
    "m4": (
        "2026-05-21",
        "I will start at Beta on June 1.",
        [{"relation": "WORKS_AT", "target": "Beta", "fact": "Tom will start", "valid_at": "2026-06-01"}],
    ),
    "m5": (
        "2026-06-03",
        "I restarted the printer.",
        [{"relation": "RESTARTED", "target": "printer", "fact": "Tom restarted it", "kind": "happened"}],
    ),
    "m6": (
        "2026-06-09",
        "I had to restart the printer again.",
        [{"relation": "RESTARTED", "target": "printer", "fact": "Tom restarted it anew", "kind": "happened"}],
    ),
    "m7": (
        "2026-06-11",
        "I have spoken Igbo ever since I can think.",
        [{"relation": "SPEAKS", "target": "Igbo", "fact": "Tom has spoken Igbo for ever", "valid_at": None}],
    ),
}  # fmt: skip
UNKNOWN = None


@pytest.fixture
def tom(kgray):
    """Return the shell with all of it committed."""
    kgray.script(
        *(
            {"episode": id_, "extraction": {"entities": [], "facts": [{"source": TOM} | f for f in facts]}}
            for id_, (_, _, facts) in MESSAGES.items()
        )
    )
    rows = [{"id": id_, "at": at, "speaker": TOM, "text": text} for id_, (at, text, _) in MESSAGES.items()]
    assert kgray("add", kgray.write("a.jsonl", *rows), "--group", "g").code == 0
    return kgray


def facts(answer) -> set[tuple[str, str | None, str | None]]:
    """Return (text, from, to) of the facts of an answer, in days."""
    rows = answer.json["facts" if "facts" in answer.json else "hits"]
    return {
        (row["text"], *(row[key] and row[key][:10] for key in ("valid_at", "invalid_at")))
        for row in rows
        if row["scope"] == "fact"
    }


ROLE = ("Tom Okafor has the role designer", "2026-01-05", None)
IGBO = ("Tom Okafor speaks Igbo", UNKNOWN, None)
HOUSE = ("Tom Okafor owns house in Munich", UNKNOWN, "2026-04-01")
ACME = ("Tom Okafor works at Acme", "2026-01-05", "2026-02-27")
BETA = ("Tom Okafor works at Beta", "2026-06-01", None)
RESTARTS = {
    ("Tom Okafor restarted printer on 2026-06-03", "2026-06-03", None),
    ("Tom Okafor restarted printer on 2026-06-09", "2026-06-09", None),
}


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        pytest.param("2026-02-01", {ROLE, IGBO, HOUSE, ACME}, id="before-all-ends"),
        pytest.param("2026-03-05", {ROLE, IGBO, HOUSE}, id="the-job-is-quit-and-the-house-is-not-sold"),
        pytest.param("2026-05-25", {ROLE, IGBO}, id="the-house-is-sold-and-the-new-job-has-not-begun"),
        pytest.param("2026-08-01", {ROLE, IGBO, BETA, *RESTARTS}, id="two-months-after-the-start"),
    ],
)
def test_a_search_returns_the_true_facts_of_each_moment(tom, moment, expected):
    answer = tom("search", TOM, "--group", "g", "--scope", "fact", "--as-of", moment, "--json")
    assert facts(answer) == expected


@pytest.mark.parametrize(
    ("words", "moment", "first"),
    [
        ("sold", "2026-03-05", HOUSE[0]),
        ("quit", "2026-02-01", ACME[0]),
        ("start", "2026-08-01", BETA[0]),
    ],
)
def test_a_search_matches_the_words_of_the_original_sentence(tom, words, moment, first):
    """The sentences remain as evidence, in the full text and the vectors."""
    answer = tom("search", words, "--group", "g", "--scope", "fact", "--as-of", moment, "--json")
    assert answer.json["hits"][0]["text"] == first


def test_the_context_has_open_facts_and_past_events(tom):
    output = tom("context", "Tom Okafor", "--group", "g", "--as-of", "2026-08-01", "--scope", "fact").out
    block = output.partition("<FACTS>\n")[2].partition("</FACTS>")[0]
    assert {line.split("] ", 1)[1] for line in block.splitlines()} == {
        "Tom Okafor restarted printer on 2026-06-03",
        "Tom Okafor restarted printer on 2026-06-09",
        "Tom Okafor has the role designer (Date range: 2026-01-05 - present)",
        "Tom Okafor works at Beta (Date range: 2026-06-01 - present)",
        "Tom Okafor speaks Igbo (Date range: unknown - present)",
    }


def test_the_history_has_every_span_and_no_unstated_start(tom):
    answer = tom("history", TOM, "--group", "g", "--json")
    assert facts(answer) == {ROLE, IGBO, HOUSE, ACME, BETA, *RESTARTS}
    assert {row["text"] for row in answer.json["facts"] if row["event"]} == {text for text, _, _ in RESTARTS}
    lines = tom("history", TOM, "--group", "g").out.splitlines()
    (house,) = (line for line in lines if "house in Munich" in line)
    assert house.startswith("unknown .. 2026-04-01 ")
    assert "said with its end in m3" in house
    assert "always" not in " ".join(lines)
    restarts = [line for line in lines if "RESTARTED" in line]
    assert [line.split()[0] for line in restarts] == ["2026-06-03", "2026-06-09"]
    assert all(".." not in line for line in restarts)


def test_a_role_does_not_name_a_former_job_and_joined_names_both_match(kgray):
    """The rules extractor gives both facts of the first message one sentence."""
    kgray.env["KGRAY_MODEL_BACKEND"] = "rules"
    texts = {
        "Alice": [
            "I work at Initech as an engineer.",
            "I live in Berlin.",
            "I left Initech.",
            "I moved to Oslo.",
        ],
        "Bob": ["Bob lives in Paris. My manager is Alice."],
    }
    rows = [
        {"at": f"2026-01-{day:02}", "speaker": speaker, "text": text}
        for speaker, messages in texts.items()
        for day, text in enumerate(messages, 1)
    ]
    assert kgray("add", kgray.write("a.jsonl", *rows), "--group", "g").code == 0

    role = kgray("search", "Alice", "--group", "g", "--scope", "fact", "--as-of", "2026-02-01", "--json")
    assert ("Alice has the role engineer", "2026-01-01", None) in facts(role)
    assert not any("Initech" in text for text, *_ in facts(role))
    homes = kgray("search", "Where do Alice and Bob live?", "--group", "g", "--limit", "2", "--json")
    assert {text for text, *_ in facts(homes)} == {"Alice lives in Oslo", "Bob lives in Paris"}
