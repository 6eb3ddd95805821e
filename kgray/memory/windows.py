"""Parts of a group for those who draw, follow or page it: a neighbourhood, a difference, changes, the log.

Costs: a neighbourhood what is in reach of its centre; a difference one pass over the group; changes, and a
page of the log, their length.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from kgray import kinds, rows
from kgray.derivation.stored import in_pieces, view_now
from kgray.derivation.view import View
from kgray.errors import InputError, NotFound
from kgray.graph import Entity, Fact
from kgray.ledger import result, sequences_of
from kgray.memory.answers import KEPT, ToldEpisode, entity_row, told_episodes
from kgray.memory.naming import entities_of, entity_called
from kgray.ports import GraphView, Store
from kgray.search import spans_of
from kgray.times import Instant, from_datetime, show

MAX_DEPTH = 4
MAX_ROWS = 1000
_LOOKED = 20_000  # episodes that one page of the log looks at
_TOLD = ("text", "valid_at", "invalid_at", "source", "relation", "target")
Row = dict[str, Any]


def check_bounds(limit: int, depth: int = 0) -> None:
    """Raise InputError where a page is too long, or a neighbourhood too wide."""
    if not 1 <= limit <= MAX_ROWS:
        raise InputError(f"limit is {limit}: use 1 to {MAX_ROWS}", field="limit")
    if not 0 <= depth <= MAX_DEPTH:
        raise InputError(f"depth is {depth}: use 0 to {MAX_DEPTH}", field="depth")


def _fact_rows(view: GraphView, facts: Sequence[Fact]) -> list[Row]:
    """Return facts in the form of `History.as_dict`, in the order given."""
    spans, _ = spans_of(view, facts)
    return [{"id": f.id, "statement": f.statement, "text": f.text} | spans[f.id].as_dict() for f in facts]


def _all_facts(store: Store, view: GraphView) -> list[Fact]:
    if isinstance(view, View):
        return view.all_facts()
    return [rows.fact(row) for row in store.rows(kinds.ALL["facts"], view.group)]


def neighbourhood(
    store: Store, view: GraphView, centre: str | None, as_of: Instant | None, depth: int, limit: int
) -> Row:
    """Return what `GroupReads.neighbourhood` does: what is within `depth` steps of a centre."""
    check_bounds(limit, depth)
    if centre is None:
        facts = [f for f in _all_facts(store, view) if as_of is None or f.holds_at(as_of)]
        degrees = Counter(end for fact in facts for end in fact.ends)
        everyone = entities_of(store, view)
        ordered = sorted(everyone, key=lambda one: (-degrees[one.id], one.born, one.id))
    else:
        steps, facts = _reached(view, entity_called(store, view, centre), as_of, depth)
        ordered = sorted(view.entities(list(steps)), key=lambda one: (steps[one.id], one.born, one.id))
    kept = {one.id for one in ordered[:limit]}
    between = [fact for fact in facts if kept.issuperset(fact.ends)]
    between.sort(key=lambda f: (f.valid_at is not None, f.valid_at or 0, f.id))
    total = {"entities": len(ordered), "facts": len(facts)}
    shown = between[:limit]
    return {
        "entities": [entity_row(one) for one in ordered[:limit]],
        "facts": _fact_rows(view, shown),
        "truncated": len(kept) < total["entities"] or len(shown) < total["facts"],
        "total": total,
    }


def _reached(
    view: GraphView, centre: Entity, as_of: Instant | None, depth: int
) -> tuple[dict[str, int], list[Fact]]:
    """Return entity -> steps from the centre, and all facts that were walked over."""
    steps, facts, edge = {centre.id: 0}, dict[str, Fact](), [centre.id]
    for step in range(1, depth + 1):
        met = view.facts_at(edge, as_of, None) if edge else []
        facts.update((fact.id, fact) for fact in met)
        edge = [e for e in dict.fromkeys(end for fact in met for end in fact.ends) if e not in steps]
        steps.update(dict.fromkeys(edge, step))
    return steps, list(facts.values())


def difference(
    store: Store, views: tuple[GraphView, GraphView], as_of: tuple[Instant | None, Instant | None], limit: int
) -> Row:
    """Return what a group shows at the second moment and not at the first, and the other way round.

    changed: the same fact with another text, span or end. Each list has at most `limit`, `total` counts all
    """
    check_bounds(limit)
    before, after = (_at(store, view, moment) for view, moment in zip(views, as_of, strict=True))
    both = [id_ for id_ in after if id_ in before]
    changed = [i for i in both if any(getattr(before[i], n) != getattr(after[i], n) for n in _TOLD)]
    was, now = ({one.id: one for one in entities_of(store, view)} for view in views)
    facts = {
        "opened": [fact for id_, fact in after.items() if id_ not in before],
        "ended": [fact for id_, fact in before.items() if id_ not in after],
        "changed": [after[id_] for id_ in changed],
    }
    named = {
        "entities_new": [one for one in now.values() if one.id not in was],
        "entities_gone": [one for one in was.values() if one.id not in now],
        "entities_renamed": [one for i, one in now.items() if i in was and one.name != was[i].name],
    }
    total = {name: len(found) for name, found in facts.items()} | {n: len(one) for n, one in named.items()}
    old = _fact_rows(views[0], [before[id_] for id_ in changed[:limit]])
    new = _fact_rows(views[1], facts["changed"][:limit])
    return {
        "opened": _fact_rows(views[1], facts["opened"][:limit]),
        "ended": _fact_rows(views[0], facts["ended"][:limit]),
        "changed": [{"before": was_, "after": is_} for was_, is_ in zip(old, new, strict=True)],
        **{name: [entity_row(one) for one in found[:limit]] for name, found in named.items()},
        "truncated": any(count > limit for count in total.values()),
        "total": total,
    }


def _at(store: Store, view: GraphView, as_of: Instant | None) -> dict[str, Fact]:
    found = (fact for fact in _all_facts(store, view) if as_of is None or fact.holds_at(as_of))
    return {fact.id: fact for fact in sorted(found, key=lambda fact: (fact.created_at, fact.id))}


def changes(store: Store, group: str, since: Instant, limit: int) -> Row:
    """Return the commits after one, in order. A commit's number is its record time, in microseconds.

    "last" is the number to go on from. At most about `limit` rows; a commit is never cut in two.
    """
    check_bounds(limit)
    if not 0 <= since <= 1 << 62:
        raise InputError("since must be the number of a commit, or 0", field="since")
    ended, done, opened, expired = (store.rows(read, group, [since + 1]) for read in kinds.SINCE)
    if in_pieces(store, group):  # what is stored is not so any more (R27)
        facts = _all_facts(store, view_now(store, group))
        opened = iter(sorted((f.created_at, f.id) for f in facts if f.created_at > since))
        expired = iter(sorted((at, f.id) for f in facts if (at := f.expired_at) is not None and at > since))
    found = heapq.merge(
        ((at, "entries", _ended(*row)) for at, *row in ended if row[0] in (kinds.COMMITTED, kinds.FAILED)),
        ((at, "entries", _done(*row)) for at, *row in done),
        ((at, "opened", id_) for at, id_ in opened),
        ((at, "ended", id_) for at, id_ in expired),
        key=itemgetter(0),
    )
    commits, size = list[Row](), 0
    for at, told in groupby(found, key=itemgetter(0)):
        if size >= limit:
            return {"commits": commits, "last": commits[-1]["commit"], "more": True}
        commit: Row = {"commit": at, "at": show(at), "entries": [], "opened": [], "ended": []}
        for _, what, one in told:
            commit[what].append(one)
        size += 1 + sum(map(len, (commit["entries"], commit["opened"], commit["ended"])))
        commits.append(commit)
    return {"commits": commits, "last": commits[-1]["commit"] if commits else since, "more": False}


def _ended(state: int, sequence: int, id_: str, client_id: str | None) -> Row:
    ended = {"type": "episode", "sequence": sequence, "id": id_, "client_id": client_id}
    return ended | {"state": rows.STATES[state]}


def _done(state: int, sequence: int, kind: str) -> Row:
    return {"type": kind, "sequence": sequence, "state": "done" if state == kinds.DONE else "refused"}


def log_page(store: Store, group: str, after: int, state: str | None, limit: int) -> Row:
    """Return episodes of the log by sequence, behind one. "next": where to go on from; None = no more."""
    check_bounds(limit)
    if not 0 <= after <= 1 << 62:
        raise InputError("after must be a sequence, or 0", field="after")
    if state is not None and state not in rows.STATES:
        raise InputError(f"state {state!r} is none of {', '.join(rows.STATES)}", field="state")
    chosen, at, behind = list[int](), after, None
    for looked, row in enumerate(store.rows(kinds.EPISODE_HEADS, group, [at])):
        if looked == _LOOKED or len(chosen) == limit:
            behind = at
            break
        at = row[0]
        if row[7] is None and (state is None or rows.STATES[row[5]] == state):
            chosen.append(at)
    told = told_episodes(store, group, chosen, set())
    return {"episodes": [episode_dict(one) for one in told], "next": behind}


def episode(store: Store, group: str, name: str) -> Row:
    """Return the last episode with an id, ours or the client's, in any state. Raises NotFound."""
    found = [*told_episodes(store, group, sequences_of(store, group, [name]), set())]
    if not found:
        raise NotFound(f"group {group} has no episode {name!r}")
    return episode_dict(found[-1])


def episode_dict(one: ToldEpisode) -> Row:
    """Return an episode of the log as JSON shows it."""
    moments = {name: getattr(one, name) for name in ("reference_time", "recorded_at")}
    shown = {name: at and show(from_datetime(at)) for name, at in moments.items()}
    return {name: getattr(one, name) for name in KEPT} | shown


def operation(store: Store, group: str, sequence: int) -> Row:
    """Return a correction or removal with its state and result. Raises NotFound."""
    for row in store.rows(kinds.OPERATIONS_AT, group, [sequence]):
        state = ("pending", "done", "refused")[row[3]]
        answer = result(store, group, sequence)
        return {"sequence": sequence, "kind": row[1], "state": state, "result": answer}
    raise NotFound(f"group {group} has no operation {sequence}")
