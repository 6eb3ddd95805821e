"""Dates of sentences against the reference time, with their precision (R3). It is Wednesday, 2026-03-11."""

from __future__ import annotations

import pytest

from tests.unit.rules_reader import READ_AT, read, timed


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("I joined Acme in 2018.", "2018-01-01 year"),
        ("I joined Acme in March 2024.", "2024-03-01 month"),
        ("I joined Acme on 5 May 2025.", "2025-05-05 day"),
        ("I joined Acme on March 3rd, 2025.", "2025-03-03 day"),
        ("I joined Acme on 2025-05-05.", "2025-05-05 day"),
        ("I joined Acme in May.", "2025-05-01 month"),
        ("I joined Acme yesterday.", "2026-03-10 day"),
        ("I joined Acme last Friday.", "2026-03-06 day"),
        ("I joined Acme on Monday.", "2026-03-09 day"),
        ("I joined Acme last week.", "2026-03-02 day"),
        ("I joined Acme last month.", "2026-02-01 month"),
        ("I joined Acme last year.", "2025-01-01 year"),
        ("I joined Acme two weeks ago.", "2026-02-25 day"),
        ("I joined Acme ten minutes ago.", "2026-03-11 day"),
        ("I joined Acme an hour ago.", "2026-03-11 day"),
        ("I joined Acme three months ago.", "2025-12-01 month"),
        ("I joined Acme a couple of years ago.", "2024-01-01 year"),
        ("In March 2024, I joined Acme.", "2024-03-01 month"),
        ("I have worked at Acme since 2018.", "2018-01-01 year"),
        ("Since June 2019 I have worked at Acme.", "2019-06-01 month"),
        ("I've worked at Acme for three years.", "2023-01-01 year"),
        ("I will join Acme on June 1.", "2026-06-01 day"),
        ("I am joining Acme next month.", "2026-04-01 month"),
        ("I'm going to join Acme next Friday.", "2026-03-13 day"),
        ("I will join Acme in two weeks.", "2026-03-25 day"),
        ("I start at Acme on Monday.", "2026-03-16 day"),
    ],
)
def test_a_stated_start_is_extracted(text, start):
    assert timed(text) == [("Acme", "holds", start, None, False)]


@pytest.mark.parametrize(
    "text",
    [
        "I work at Acme.",
        "I joined Acme.",
        "I work at Acme today.",
        "Bob works at Acme and broke a leg in March 2025.",
        "In 2019 it rained, and Bob works at Acme.",
    ],
)
def test_a_fact_without_a_date_holds_from_the_reference_time(text):
    """R3: inferred; dates that belong to something else, or are ambiguous or vague, do not count."""
    assert timed(text) == [("Acme", "holds", READ_AT, None, True)]


def test_a_start_equal_to_the_reference_time_is_inferred():
    """R3."""
    assert timed("I joined Acme yesterday.", at="2026-03-10T00:00:00Z")[0][4] is False
    result = timed("I joined Acme on 11 March 2026.", at="2026-03-11T00:00:00Z")
    assert result == [("Acme", "holds", "2026-03-11 day", None, True)]


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("I left Acme.", [("Acme", "ended", None, READ_AT, True)]),
        ("I left Acme on 5 May 2025.", [("Acme", "ended", None, "2025-05-05 day", False)]),
        ("I will leave Acme on Friday.", [("Acme", "ended", None, "2026-03-13 day", False)]),
        ("I used to work at Acme.", [("Acme", "ended", None, READ_AT, True)]),
        ("I worked at Acme until 2015.", [("Acme", "ended", None, "2015-01-01 year", False)]),
        (
            "I worked at Acme from 2010 to 2015.",
            [("Acme", "holds", "2010-01-01 year", "2015-01-01 year", False)],
        ),
        ("I work at Acme until June 2026.", [("Acme", "holds", READ_AT, "2026-06-01 month", True)]),
        ("I have not worked at Acme since 2020.", [("Acme", "ended", None, "2020-01-01 year", False)]),
        ("I never worked at Acme.", [("Acme", "denied", None, None, False)]),
        (
            "I moved from Acme Inc to Beta Inc in May 2025.",
            [
                ("Beta Inc", "holds", "2025-05-01 month", None, False),
                ("Acme Inc", "ended", None, "2025-05-01 month", False),
            ],
        ),
        (
            "I left Acme and joined Beta in May 2025.",
            [
                ("Acme", "ended", None, "2025-05-01 month", False),
                ("Beta", "holds", "2025-05-01 month", None, False),
            ],
        ),
        (
            "I left Acme in 2024 and joined Beta in 2025.",
            [
                ("Acme", "ended", None, "2024-01-01 year", False),
                ("Beta", "holds", "2025-01-01 year", None, False),
            ],
        ),
    ],
)
def test_ends_are_extracted_with_their_dates(text, facts):
    assert timed(text) == facts


@pytest.mark.parametrize(
    "text",
    [
        "I worked at Acme from 2015 to 2010.",
        "I worked at Acme in 2015.",
        "I joined Acme on 5 May 2030.",
        "I will join Acme in 2019.",
        "I work at Acme until 2020.",
        "I work at Acme on Friday.",
        "I joined Acme by May 2025.",
        "I joined Acme in 2018 in 2019.",
    ],
)
def test_an_impossible_or_unclear_date_gives_no_fact(text):
    assert read(text).facts == ()


@pytest.mark.parametrize("at", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
@pytest.mark.parametrize(
    "date", ["last year", "next year", "two weeks ago", "in 5 months", "on Friday", "last week"]
)
def test_dates_beyond_the_calendar_are_ignored(date, at):
    assert all(fact.valid_from is not None for fact in read(f"I joined Acme {date}.", at=at).facts)
