"""Status and dates of matched facts."""

from __future__ import annotations

from dataclasses import dataclass

from bench.labelled_set.facts import ReadFact
from bench.labelled_set.labels import LabelledFact
from bench.labelled_set.shares import share


@dataclass(frozen=True, slots=True)
class Details:
    """Status and dates of matched facts; they add up."""

    facts: int = 0
    status_right: int = 0
    dates: int = 0  # that the texts state
    dates_right: int = 0
    false_dates: int = 0  # that a reader gave although the texts state none

    def __add__(self, summand: Details) -> Details:
        return Details(
            self.facts + summand.facts,
            self.status_right + summand.status_right,
            self.dates + summand.dates,
            self.dates_right + summand.dates_right,
            self.false_dates + summand.false_dates,
        )

    @property
    def status_accuracy(self) -> float:
        """Share of the matched facts with an accepted status."""
        return share(self.status_right, self.facts)

    @property
    def date_accuracy(self) -> float:
        """Share of the stated dates that the reader gave at the stated precision or finer."""
        return share(self.dates_right, self.dates)


def compared_details(label: LabelledFact, fact: ReadFact, at: str) -> Details:
    """Compare status and dates of one matched fact.

    The day of the message counts as no date unless the label has it, because engines need a date even if
    the text states none. A state with an end before the message counts as ended. Where the label accepts
    `event` or `ended`, its date may be in either field: events have one date only.
    """
    free = not {"event", "ended"}.isdisjoint(label.statuses)
    dates = {name: date for name, date in (("start", fact.start), ("end", fact.end)) if date}
    if "start" in dates and dates.get("end") == dates["start"] and label.end is None:
        del dates["end"]
    stated = {name: date for name, date in (("start", label.start), ("end", label.end)) if date}
    right = 0
    used: set[str] = set()
    for name, date in stated.items():
        fields = [name, *(field for field in ("start", "end") if free and field != name)]
        for field in fields:
            if field not in used and dates.get(field, "").startswith(date):
                right += 1
                used.add(field)
                break
    false = sum(
        name not in used and name not in stated and date[:10] != at[:10] for name, date in dates.items()
    )
    status = fact.status
    if status == "current" and fact.end and fact.end[:10] < at[: len(fact.end[:10])]:
        status = "ended"
    accepted = {"denied", "ended"} if label.statuses == ("denied",) else set(label.statuses)
    return Details(1, int(status in accepted), len(stated), right, false)
