"""The pairing of labelled facts with a reader's facts, and its counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.labelled_set.details import compared_details
from bench.labelled_set.facts import ReadFact, is_match
from bench.labelled_set.labels import LabelledFact
from bench.labelled_set.shares import Counts


@dataclass(frozen=True, slots=True)
class Pairing:
    """How one message's facts were matched: (index of the labelled fact, index of the reader's fact)."""

    pairs: tuple[tuple[int, int], ...]
    counts: Counts


def paired(gold: Sequence[LabelledFact], facts: Sequence[ReadFact], at: str) -> Pairing:
    """Match labelled facts with a reader's facts, one to one, with as many required facts as possible.

    An optional fact that is matched counts neither as right nor as wrong. Among several candidates, a
    fact with the right status and dates goes first. at: the message's time, in ISO form.
    """
    partners: dict[int, int] = {}  # index of the reader's fact -> index of the labelled fact

    def candidates(index: int) -> list[int]:
        label = gold[index]
        matching = [i for i, fact in enumerate(facts) if is_match(label, fact)]
        return sorted(matching, key=lambda i: (-_agreement(label, facts[i], at), i))

    def place(index: int, tried: set[int]) -> bool:
        """Give a labelled fact a partner; move the partners of others where that is needed."""
        for candidate in candidates(index):
            if candidate not in tried:
                tried.add(candidate)
                if candidate not in partners or place(partners[candidate], tried):
                    partners[candidate] = index
                    return True
        return False

    order = sorted(range(len(gold)), key=lambda index: gold[index].optional)
    for index in order:
        place(index, set())
    required = sum(not gold[index].optional for index in partners.values())
    total = sum(not label.optional for label in gold)
    counts = Counts(required, len(facts) - len(partners), total - required)
    return Pairing(tuple(sorted((label, fact) for fact, label in partners.items())), counts)


def _agreement(label: LabelledFact, fact: ReadFact, at: str) -> int:
    details = compared_details(label, fact, at)
    return 2 * details.status_right + details.dates_right - details.false_dates
