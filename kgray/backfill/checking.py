"""What accepting rows would do, in the store as it is; nothing is accepted, and a batch is held at a time."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from kgray.backfill.reports import SHOWN
from kgray.backfill.sorting import Sorter
from kgray.intake import Refusal, Submitted
from kgray.ledger import conflict, standing
from kgray.planning import Plan
from kgray.ports import Store
from kgray.records import Draft

Estimate = Callable[[Iterable[Draft]], Plan]
_BATCH = 500


@dataclass(slots=True, kw_only=True)
class Checked:
    """What would become of the rows. plan: what reading the accepted ones costs, where it was asked for."""

    accepted: int = 0
    duplicate: int = 0
    refused: int = 0
    refusals: list[Refusal] = field(default_factory=list)  # the first SHOWN
    plan: Plan | None = None

    def refuse(self, refusal: Refusal) -> None:
        """Count a refusal."""
        self.refused += 1
        if len(self.refusals) < SHOWN:
            self.refusals.append(refusal)

    def as_dict(self) -> dict[str, Any]:
        """Return the form that `kgray backfill --dry-run --json` prints."""
        return {
            "accepted": self.accepted,
            "duplicate": self.duplicate,
            "refused": self.refused,
            "committed": 0,
            "failed": 0,
            "retracted": 0,
            "refusals": [refusal.as_dict() for refusal in self.refusals],
            "dry_run": True,
            "plan": None if self.plan is None else self.plan.as_dict(),
        }


def check(
    store: Store,
    items: Iterable[Submitted | Refusal],
    *,
    replace: bool = False,
    estimate: Estimate | None = None,
) -> Checked:
    """Return what accepting these rows would do.

    replace    an id that is taken by other content is no conflict
    estimate   told of the drafts that would be accepted; what repeats inside the input is among them
    """
    found = Checked()
    with tempfile.TemporaryDirectory(prefix="kgray-check-") as folder:
        ids = Sorter(Path(folder))
        fresh = _fresh(store, items, found, ids, replace=replace)
        if estimate is None:
            deque(fresh, maxlen=0)
        else:
            found.plan = estimate(fresh)
        _compare(ids.sorted(), found, replace=replace)
    found.refusals.sort(key=lambda refusal: (refusal.file, refusal.line or 0))
    return found


def _fresh(
    store: Store, items: Iterable[Submitted | Refusal], found: Checked, ids: Sorter, *, replace: bool
) -> Iterator[Draft]:
    """Yield the drafts that the store does not hold; note their ids: repeats show when these are sorted."""
    rows = iter(items)
    number = 0
    while batch := list(islice(rows, _BATCH)):
        taken = [item for item in batch if isinstance(item, Submitted)]
        held = _held(store, taken)
        for item in batch:
            number += 1
            if isinstance(item, Refusal):
                found.refuse(item)
                continue
            draft, digest = item.draft, item.draft.content_sha256
            stored = held.get((draft.group, draft.id))
            if stored == digest:
                found.duplicate += 1
            elif stored is not None and not replace:
                found.refuse(_conflict(item, conflict(draft, stored)))
            else:
                ids.add([draft.id, number, digest, item.file, item.line, draft.client_id])
                yield draft


def _held(store: Store, items: list[Submitted]) -> dict[tuple[str, str], str]:
    """Return (group, id) -> content hash of what the store holds of these."""
    asked: dict[str, list[str]] = {}
    for item in items:
        asked.setdefault(item.draft.group, []).append(item.draft.id)
    return {
        (group, id_): digest
        for group, wanted in asked.items()
        for id_, digest in standing(store, group, wanted).items()
    }


def _compare(rows: Iterator[list[Any]], found: Checked, *, replace: bool) -> None:
    """Count rows by id, which tells the group too: a later one repeats the first or contradicts it."""
    last, content = None, ""
    for id_, _, digest, file, line, client_id in rows:
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


def _conflict(item: Submitted, reason: str) -> Refusal:
    return Refusal(file=item.file, line=item.line, field="id", reason=reason)
