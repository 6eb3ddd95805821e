"""A dry run: what accepting rows would do to the store as it is."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any

from kgray.backfill.inputs import check_sources
from kgray.backfill.report import SHOWN
from kgray.backfill.run import RunRequest
from kgray.intake.drafts import Refusal
from kgray.intake.files import read_file
from kgray.memory import Report
from kgray.memory.ingesting import foreseen
from kgray.ports import Store
from kgray.prompting.estimate import WorkEstimate
from kgray.records import Draft

Estimate = Callable[[Iterable[Draft]], WorkEstimate]


@dataclass(slots=True, kw_only=True)
class Forecast:
    """What would become of the rows. plan: the estimated cost of extracting the accepted ones, if asked."""

    accepted: int = 0
    duplicate: int = 0
    refused: int = 0
    refusals: list[Refusal] = field(default_factory=list)  # the first SHOWN
    plan: WorkEstimate | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the form that `kgray backfill --dry-run --json` prints."""
        report = Report(
            accepted=self.accepted, duplicate=self.duplicate, refusals=tuple(self.refusals)
        ).as_dict()
        plan = None if self.plan is None else asdict(self.plan)
        return report | {"refused": self.refused, "dry_run": True, "plan": plan}


def forecast(store: Store, request: RunRequest, *, estimate: Estimate | None = None) -> Forecast:
    """Return what accepting all rows of a run's files would do. estimate: receives the accepted drafts."""
    if request.replace:
        check_sources(request.inputs)
    found = Forecast()
    items = chain.from_iterable(
        read_file(item.place, request.defaults, name=item.name) for item in request.inputs
    )

    def accepted() -> Iterator[Draft]:
        for one in foreseen(store, items, replace=request.replace, again=request.again):
            if isinstance(one, Refusal):
                found.refused += 1
                found.refusals += [one] if found.refused <= SHOWN else []
            elif one[1] == "duplicate":
                found.duplicate += 1
            else:
                found.accepted += 1
                yield one[0].draft

    if estimate is None:
        deque(accepted(), maxlen=0)
    else:
        found.plan = estimate(accepted())
    return found
