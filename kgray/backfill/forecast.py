"""A dry run: what accepting rows would do to the store as it is. Holds one batch of rows in memory."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any
from uuid import UUID

from kgray.backfill.inputs import check_sources
from kgray.backfill.report import SHOWN
from kgray.backfill.run import RunRequest
from kgray.backfill.sorting import Sorter
from kgray.intake import Refusal, Submitted, read_file
from kgray.ledger import conflict, standing
from kgray.memory import Report
from kgray.ports import Store
from kgray.prompting.estimate import WorkEstimate
from kgray.records import Draft

Estimate = Callable[[Iterable[Draft]], WorkEstimate]
_BATCH = 500


@dataclass(slots=True, kw_only=True)
class Forecast:
    """What would become of the rows. plan: the estimated cost of extracting the accepted ones, if asked."""

    accepted: int = 0
    duplicate: int = 0
    refused: int = 0
    refusals: list[Refusal] = field(default_factory=list)  # the first SHOWN
    plan: WorkEstimate | None = None

    def refuse(self, refusal: Refusal) -> None:
        """Count a refusal."""
        self.refused += 1
        if len(self.refusals) < SHOWN:
            self.refusals.append(refusal)

    def as_dict(self) -> dict[str, Any]:
        """Return the form that `kgray backfill --dry-run --json` prints."""
        report = Report(
            accepted=self.accepted, duplicate=self.duplicate, refusals=tuple(self.refusals)
        ).as_dict()
        plan = None if self.plan is None else self.plan.as_dict()
        return report | {"refused": self.refused, "dry_run": True, "plan": plan}


def forecast(store: Store, request: RunRequest, *, estimate: Estimate | None = None) -> Forecast:
    """Return what accepting all rows of a run's files would do.

    estimate   receives the drafts that would be accepted, repeats within the input among them
    """
    found, replace = Forecast(), request.replace
    if replace:
        check_sources(request.inputs)
    items = chain.from_iterable(
        read_file(Path(item.path), request.defaults, name=item.name) for item in request.inputs
    )
    with tempfile.TemporaryDirectory(prefix="kgray-check-") as folder:
        ids = Sorter(Path(folder))
        fresh = _fresh(store, items, found, ids, replace=replace, again=request.again)
        if estimate is None:
            deque(fresh, maxlen=0)
        else:
            found.plan = estimate(fresh)
        _count(ids.sorted(), found, replace=replace)
    found.refusals.sort(key=lambda refusal: (refusal.file, refusal.line or 0))
    return found


def _fresh(
    store: Store,
    items: Iterable[Submitted | Refusal],
    found: Forecast,
    ids: Sorter,
    *,
    replace: bool,
    again: bool,
) -> Iterator[Draft]:
    """Yield the drafts that are not in the store. Adds their ids to the sorter, which reveals repeats."""
    rows = iter(items)
    while batch := list(islice(rows, _BATCH)):
        held = _held(store, [item.draft for item in batch if isinstance(item, Submitted)], again=again)
        for item in batch:
            if isinstance(item, Refusal):
                found.refuse(item)
                continue
            draft, digest = item.draft, item.draft.content_sha256
            stored = held.get((draft.group, draft.id))
            if stored == digest:
                found.duplicate += 1
            elif stored is not None and not replace:
                reason = conflict(draft, stored)
                found.refuse(Refusal(file=item.file, line=item.line, field="id", reason=reason))
            else:
                ids.add(UUID(draft.id).bytes, [draft.id, digest, item.file, item.line, draft.client_id])
                yield draft


def _held(store: Store, drafts: list[Draft], *, again: bool) -> dict[tuple[str, str], str]:
    """Return (group, id) -> content hash for those of the drafts that are in the store.

    What was retracted is in the store too, unless `again`.
    """
    asked: dict[str, dict[str, str]] = {}
    for draft in drafts:
        asked.setdefault(draft.group, {})[draft.id] = draft.content_sha256
    return {
        (group, id_): digest
        for group, wanted in asked.items()
        for id_, digest in standing(store, group, list(wanted), offered={} if again else wanted).items()
    }


def _count(rows: Iterator[list[Any]], found: Forecast, *, replace: bool) -> None:
    """Count rows sorted by (group, id): after the first of an id, each is a duplicate or contradicts it."""
    last, content = None, ""
    for id_, digest, file, line, client_id in rows:
        if id_ == last and digest == content:
            found.duplicate += 1
        elif id_ == last and not replace:
            reason = (
                f"id {client_id!r} stands before in the input with other content: sha256 {content}, "
                f"and {digest} here; use --replace to retract the old one"
            )
            found.refuse(Refusal(file=file, line=line, field="id", reason=reason))
        else:
            found.accepted += 1
            last, content = id_, digest
