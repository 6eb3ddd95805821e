"""Draw an entity's facts over time: `kgray history NAME --group G --json | python examples/timeline.py`.

One line a fact: what it says, when it held as a bar, the dates, the messages that say so and that ended it.
`--relation WORKS_AT` (repeatable) draws facts of these relations only.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

WIDTH = 40  # characters of a bar
BAR, POINT, OPEN, START, END = "━", "●", "▶", "┣", "┫"


def instant(text: str) -> datetime:
    """Return a time of kgray's output."""
    return datetime.fromisoformat(text)


def day(text: str | None) -> str:
    """Return the date of a time; of an open end, three dots."""
    return text[:10] if text else "..."


def drawn(fact: dict[str, Any], first: datetime, last: datetime) -> str:
    """Return the bar of a fact between two moments: WIDTH characters."""

    def column(moment: str | None, otherwise: int) -> int:
        if moment is None:
            return otherwise
        share = (instant(moment) - first) / (last - first)
        return min(max(round(share * (WIDTH - 1)), 0), WIDTH - 1)

    begin = column(fact["valid_at"], 0)
    if fact["event"]:
        return " " * begin + POINT + " " * (WIDTH - begin - 1)
    until = column(fact["invalid_at"], WIDTH - 1)
    bar = [BAR] * (until - begin + 1)
    if fact["valid_at"]:
        bar[0] = START
    bar[-1] = END if fact["invalid_at"] else OPEN
    return " " * begin + "".join(bar) + " " * (WIDTH - until - 1)


def axis(first: datetime, last: datetime) -> str:
    """Return the line above the bars: years, and months where there is room for them."""
    line = [" "] * (WIDTH + 4)
    month, free = datetime(first.year, first.month, 1, tzinfo=UTC), 0
    while month <= last:
        at = max(round((month - first) / (last - first) * (WIDTH - 1)), 0)
        if at >= free and (month.month == 1 or last - first < timedelta(days=900)):
            label = f"{month:%Y}" if month.month == 1 else f"{month:%b}"
            line[at : at + len(label)] = label
            free = at + len(label) + 1
        month = (month + timedelta(days=32)).replace(day=1)
    return "".join(line).rstrip()


def sources(fact: dict[str, Any], names: dict[str, str]) -> str:
    """Return which messages support the fact, and which ended it; `names`: the clients' ids of messages."""
    said = ", ".join(names[row["id"]] for row in fact["episodes"])
    ended = fact["ended_by"]
    return f"said in {said}" + (f", ended by {names.get(ended[0], ended[0][:8])}" if ended else "")


def label_of(fact: dict[str, Any], name: str) -> str:
    """Return what a fact says of the entity, without the entity's name and, of an event, without its date."""
    said = str(fact["text"]).removeprefix(name).strip()
    return said.rpartition(" on ")[0] or said if fact["event"] else said


def timeline(history: dict[str, Any], relations: Iterable[str]) -> list[str]:
    """Return the lines of the picture; none where no fact has a date."""
    wanted, name = set(relations), history["entity"]["name"]
    facts = [fact for fact in history["facts"] if not wanted or fact["relation"] in wanted]
    dates = sorted(
        instant(moment) for fact in facts for moment in (fact["valid_at"], fact["invalid_at"]) if moment
    )
    if not dates:
        return []
    first, last = dates[0], dates[-1] + max((dates[-1] - dates[0]) / 12, timedelta(days=2))
    names = {row["id"]: row["client_id"] or row["id"][:8] for fact in facts for row in fact["episodes"]}
    labels = [label_of(fact, name) for fact in facts]
    space = min(max(map(len, labels)), 44)
    lines = [name, " " * (space + 2) + axis(first, last)]
    for fact, label in zip(facts, labels, strict=True):
        dated = (
            day(fact["valid_at"]) if fact["event"] else f"{day(fact['valid_at'])} - {day(fact['invalid_at'])}"
        )
        lines.append(
            f"{label[:space]:{space}}  {drawn(fact, first, last)}  {dated:23}  {sources(fact, names)}"
        )
    return lines


def main() -> None:
    """Read the JSON of `kgray history` from stdin and print its timeline."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--relation", action="append", default=[], help="draw facts of this relation only")
    chosen = parser.parse_args()
    lines = timeline(json.load(sys.stdin), chosen.relation)
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    print("\n".join(lines) or "no fact with a date")


if __name__ == "__main__":
    main()
