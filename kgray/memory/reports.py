"""The report of a submission, the ledger, and rows of the dump."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import compress
from typing import Any

from kgray import kinds, rows
from kgray.derivation import dump
from kgray.derivation.around import records_around
from kgray.derivation.group import GroupGraph
from kgray.derivation.stored import records_of
from kgray.derivation.view import View
from kgray.errors import exit_code_of
from kgray.graph import Entity
from kgray.intake.drafts import Refusal
from kgray.ledger import Bearers, dumped_episodes, episodes_at, failures, find
from kgray.ports import GroupCounts, Store, at_one_moment
from kgray.records import Episode, GroupRecords
from kgray.times import Instant


def ledger_of(counts: Mapping[str, GroupCounts]) -> dict[str, Any]:
    """Return {"groups": {group: number by state}, "model": its cost}, as `kgray status --json` does."""
    states = ("accepted", "extracted", "committed", "failed", "held")
    costs = ("calls", "prompt_tokens", "completion_tokens")
    groups = {name: {state: getattr(row, state) for state in states} for name, row in counts.items()}
    return {"groups": groups, "model": {n: sum(getattr(row, n) for row in counts.values()) for n in costs}}


def group_rows(counts: Mapping[str, GroupCounts]) -> list[dict[str, Any]]:
    """Return the groups with the sizes that `kgray groups --json` prints."""
    return [
        {"group": name, "episodes": episodes, "entities": row.entities, "facts": row.facts}
        for name, row in counts.items()
        for episodes in [row.accepted + row.extracted + row.committed + row.failed]
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The outcome of a submission.

    committed, failed   of all that was pending in the store, earlier leftovers included
    retracted           episodes that a replaced text file no longer holds
    still_retracted     duplicates of episodes that were retracted, and stay so unless `again` is asked for
    untimed             accepted without a reference time; acceptance gave them one (R19)
    left_out            what was not understood of the episodes that were read; unread: the first lines that
                        say so, of those that this submission accepted
    stopped             a signal or an outage beyond the patience (`reason` names it) ended the run; what was
                        accepted is safe, and the next run goes on
    held                groups whose work failed for a reason that is not their content's, and why (R24)
    """

    accepted: int = 0
    duplicate: int = 0
    committed: int = 0
    failed: int = 0
    retracted: int = 0
    untimed: int = 0
    still_retracted: int = 0
    left_out: int = 0
    unread: tuple[str, ...] = ()
    stopped: bool = False
    reason: str = ""
    held: Mapping[str, str] = field(default_factory=dict)
    refusals: tuple[Refusal, ...] = ()

    @property
    def refused(self) -> int:
        """How many rows were not taken."""
        return len(self.refusals)

    @property
    def exit_code(self) -> int:
        """The exit code: 75 stopped, 1 something refused or failed, 0 all done."""
        return exit_code_of(stopped=self.stopped, incomplete=bool(self.refusals or self.failed or self.held))

    def as_dict(self) -> dict[str, Any]:
        """Return the form that `kgray add --json` prints."""
        names = ("accepted", "duplicate", "refused", "committed", "failed", "retracted", "still_retracted")
        counts = {name: getattr(self, name) for name in (*names, "left_out")}
        listed = {"held": dict(self.held), "refusals": [refusal.as_dict() for refusal in self.refusals]}
        return counts | listed


def derived(store: Store, group: str, known_at: Instant | None) -> View:
    """Return the graph of a group, derived from its records as known then (None: now)."""
    return View(records_of(store, group, known_at), partial(episodes_at, store, group))


def dumped(store: Store, group: str, known_at: Instant | None) -> list[dump.DumpRow]:
    """Return the rows of the dump, unsorted."""
    return at_one_moment(
        store,
        lambda: list(dump.rows(derived(store, group, known_at), dumped_episodes(store, group, known_at))),
    )


def shown(store: Store, group: str, identifier: str) -> list[dump.DumpRow]:
    """Return the dump rows of one episode, entity, statement or fact and of all that belongs to it.

    Why an episode failed, with the model's last reply, is a row more (R24). To be called inside
    `Store.reading`, with an id that is there.
    """
    found = find(store, group, identifier)
    view = view_around(store, group, identifier, found)
    told = sorted({*found.episodes, *(head.sequence for head in view.records.heads)})
    kept = matches(identifier, found, view, episodes_at(store, group, told))
    for failed in failures(store, group):
        if failed.episode.sequence in found.episodes:
            why = failed.failure
            row = {"class": why.kind, "message": why.message, "attempts": why.attempts}
            kept.append({"type": "failure", "episode": failed.episode.id, **row, "reply": why.raw or None})
    return kept


def matches(identifier: str, found: Bearers, view: View, episodes: Iterable[Episode]) -> list[dump.DumpRow]:
    """Return the dump rows of what has an id and of what belongs to it, in the order of the dump.

    An episode brings its mentions and evidence, and what these are about; an entity its mentions,
    statements, their evidence and facts; a fact or statement its evidence and the episodes behind it.
    """
    of: dict[str, list[dump.DumpRow]] = defaultdict(list)
    for row in dump.rows(view, list(episodes)):
        of[row["type"]].append(row)
    asked = {row["id"] for row in of["episode"] if row["sequence"] in found.episodes}
    subjects = {entity.id for entity in view.entities([identifier])} if found.entity else set()
    statements = {row["statement"] for row in of["evidence"] if row["episode"] in asked}
    statements |= {row["id"] for row in of["statement"] if subjects & {row["subject"], row["object"]}}
    if found.fact:
        statements |= {row["statement"] for row in of["fact"] if row["id"] == identifier}
    if found.statement:
        statements |= {fact.statement for fact in view.facts_of([identifier], None)} or {identifier}
    kept = _belonging(of, asked, subjects, statements)
    return sorted(kept, key=lambda row: (row["type"], dump.lines([row])[0]))


def _belonging(
    of: Mapping[str, list[dump.DumpRow]], asked: set[str], subjects: set[str], statements: set[str]
) -> Iterator[dump.DumpRow]:
    """Yield the rows that belong to episodes that were asked for, to entities, and to statements.

    of      the rows of the dump, by type
    """
    about = [row for row in of["statement"] if row["id"] in statements]
    own = [row["episode"] in asked if asked else row["statement"] in statements for row in of["evidence"]]
    evidence = list(compress(of["evidence"], own))
    mentions = [row for row in of["mention"] if row["episode"] in asked or row["entity"] in subjects]
    entities = subjects | {row["entity"] for row in mentions}
    entities |= {end for row in about for end in (row["subject"], row["object"])}
    episodes = asked | {row["episode"] for row in evidence}
    episodes |= {row["episode"] for row in mentions if row["entity"] in subjects}
    relations = {row["relation"] for row in about}
    yield from (*about, *evidence, *mentions)
    yield from (row for row in of["episode"] if row["id"] in episodes)
    yield from (row for row in of["entity"] if row["id"] in entities)
    yield from (row for row in of["relation"] if row["name"] in relations)
    yield from (row for row in of["verdict"] if statements & {row["a"], row["b"]})
    yield from (row for row in of["merge"] if entities.intersection(row["entities"]))
    for row in of["fact"]:
        if row["statement"] in statements or (row["ended_by"] or [None])[0] in asked:
            yield row


class ViewAround(View):
    """The graph of some of a group's episodes. Entities show as the store has them, with all their names."""

    def __init__(self, store: Store, records: GroupRecords) -> None:
        super().__init__(records, partial(episodes_at, store, records.group))
        self._store = store

    def all_entities(self) -> list[Entity]:
        """Return all entities of these episodes, by id."""
        ids = sorted(self.graph.entities)
        return [rows.entity(row) for row in self._store.rows(kinds.ENTITIES_OF, self.group, ids)]


def view_around(store: Store, group: str, identifier: str, found: Bearers) -> ViewAround:
    """Return a view in which what `reports.matches` shows of an id is as in the whole group.

    found   what has the id; inside `Store.reading`
    """
    reads = (kinds.FACTS_OF, kinds.FACTS_OF_STATEMENTS)
    facts = [row for read in reads for row in store.rows(read, group, [identifier])]
    told = {row[1] for row in store.rows(kinds.EVIDENCE_OF, group, [identifier])}

    def wanted(graph: GroupGraph) -> set[str]:
        """Return the statements with which `reports.matches` begins."""
        places = graph.places()
        shown = {places[place] for place in places if place[0] in {*found.episodes, *told}}
        subjects = {*graph.shows.get(identifier, ()), identifier}
        shown |= {s.id for s in graph.statements.values() if s.subject in subjects or s.object in subjects}
        return shown | ({identifier, *(row[1] for row in facts)} & graph.statements.keys())

    entities = {identifier, *(row[2] for row in facts)}
    episodes = {*found.episodes, *told}
    return ViewAround(store, records_around(store, group, wanted, episodes=episodes, entities=entities))
