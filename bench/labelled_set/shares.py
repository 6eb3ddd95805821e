"""Right, wrong and missed items, and the shares that follow from them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Counts:
    """Facts of one reader: right, wrongly listed, and missed. They add up."""

    right: int = 0
    wrong: int = 0
    missed: int = 0

    def __add__(self, summand: Counts) -> Counts:
        return Counts(self.right + summand.right, self.wrong + summand.wrong, self.missed + summand.missed)

    @property
    def precision(self) -> float:
        """Share of the listed facts that are right; 1 where none was listed."""
        return share(self.right, self.right + self.wrong)

    @property
    def recall(self) -> float:
        """Share of the labelled facts that were listed; 1 without labelled facts."""
        return share(self.right, self.right + self.missed)

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        return share(2 * self.right, 2 * self.right + self.wrong + self.missed)


def share(part: int, total: int) -> float:
    """Return part / total, or 1 where there is nothing to count."""
    return part / total if total else 1.0
