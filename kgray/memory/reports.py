"""What the methods of `Memory` return, and its JSON form, whose field names are a stable interface."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kgray.derivation import dump
from kgray.derivation.stored import StoredView, records_of
from kgray.derivation.view import View
from kgray.errors import Ambiguous, NotFound, exit_code_of
from kgray.graph import Entity, Fact, Hit
from kgray.intake.drafts import Refusal
from kgray.ledger import Bearers, dumped_episodes, episodes_at, find
from kgray.ports import GraphView, Store, at_one_moment
from kgray.records import Episode
from kgray.times import Instant, show


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The outcome of a submission.

    committed, failed   of all that was pending in the store, earlier leftovers included
    retracted           episodes that a replaced text file no longer holds
    untimed             accepted without a reference time; acceptance gave them one (R19)
    stopped             a signal or an outage beyond the patience (`reason` names it) ended the run; what was
                        accepted is safe, and the next run goes on
    """

    accepted: int = 0
    duplicate: int = 0
    committed: int = 0
    failed: int = 0
    retracted: int = 0
    untimed: int = 0
    stopped: bool = False
    reason: str = ""
    refusals: tuple[Refusal, ...] = ()

    @property
    def refused(self) -> int:
        """How many rows were not taken."""
        return len(self.refusals)

    @property
    def exit_code(self) -> int:
        """The exit code: 75 stopped, 1 something refused or failed, 0 all done."""
        return exit_code_of(stopped=self.stopped, incomplete=bool(self.refusals or self.failed))

    def as_dict(self) -> dict[str, Any]:
        """Return the form that `kgray add --json` prints."""
        return {
            "accepted": self.accepted,
            "duplicate": self.duplicate,
            "refused": self.refused,
            "committed": self.committed,
            "failed": self.failed,
            "retracted": self.retracted,
            "refusals": [refusal.as_dict() for refusal in self.refusals],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Every span of an entity's facts. names: entity id -> name; clients: episode id -> the client's id."""

    group: str
    entity: Entity
    facts: tuple[Fact, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    clients: Mapping[str, str | None] = field(default_factory=dict)

    def target(self, fact: Fact) -> str | None:
        """Return the name of a fact's object, or its value's text."""
        if fact.value is not None:
            return fact.value.shown()
        return self.names.get(fact.target) if fact.target is not None else None

    def as_dict(self) -> dict[str, Any]:
        """Return the form that `kgray history --json` prints."""
        entity = self.entity
        return {
            "entity": {
                "id": entity.id,
                "name": entity.name,
                "aliases": list(entity.aliases),
                "labels": list(entity.labels),
            },
            "facts": [self._fact(fact) for fact in self.facts],
        }

    def _fact(self, fact: Fact) -> dict[str, Any]:
        head = {"scope": "fact", "id": fact.id, "text": fact.text, "group": self.group}
        supporters = tuple((episode, self.clients.get(episode)) for episode in fact.episodes)
        ended_by = list(fact.ended_by) if fact.ended_by else None
        tail = {"statement": fact.statement, "ended_by": ended_by}
        return head | fact_fields(fact, self.names.get(fact.source), self.target(fact), supporters) | tail


def fact_fields(
    fact: Fact, source: str | None, target: str | None, episodes: tuple[tuple[str, str | None], ...]
) -> dict[str, Any]:
    """Return the keys of a fact hit that only facts have."""
    return {
        "source_id": fact.source,
        "source": source,
        "relation": fact.relation,
        "target_id": fact.target,
        "target": target,
        "valid_at": show(fact.valid_at),
        "invalid_at": show(fact.invalid_at),
        "created_at": show(fact.created_at),
        "expired_at": show(fact.expired_at),
        "episodes": [{"id": episode, "client_id": client} for episode, client in episodes],
    }


def hit_row(hit: Hit) -> dict[str, Any]:
    """Return the form in which search and context print a hit."""
    row: dict[str, Any] = {
        "scope": hit.scope,
        "id": hit.id,
        "text": hit.text,
        "score": hit.score,
        "group": hit.group,
        "methods": dict(hit.methods),
    }
    if hit.fact is not None:
        row |= fact_fields(hit.fact, hit.source, hit.target, hit.episodes)
    elif hit.scope == "episode":
        row |= {
            "client_id": hit.client_id,
            "reference_time": show(hit.reference_time),
            "speaker": hit.speaker,
        }
    elif hit.entity is not None:
        row |= {"aliases": list(hit.entity.aliases), "labels": list(hit.entity.labels)}
    return row


# ------------------------------------------------------------------------------------ the history verb


def history_of(store: Store, view: GraphView, group: str, name_or_id: str) -> History:
    """Return every span of an entity's facts that a view shows, in order of their start.

    Raises NotFound, and Ambiguous where several entities have the name.
    """
    found = view.entities([_entity_id(store, group, name_or_id)])
    if not found:
        raise NotFound(f"{name_or_id!r} is no entity of group {group} as known then")
    entity = found[0]
    facts = view.facts_at([entity.id], None, None)
    facts.sort(key=lambda f: (f.valid_at is not None, f.valid_at or 0, f.relation, f.created_at, f.id))
    ends = list(dict.fromkeys(end for fact in facts for end in fact.ends))
    names = {end.id: end.name for end in view.entities(ends)}
    clients = view.supporters(sorted({episode for fact in facts for episode in fact.episodes}))
    return History(group=group, entity=entity, facts=tuple(facts), names=names, clients=clients)


def _entity_id(store: Store, group: str, name_or_id: str) -> str:
    if find(store, group, name_or_id).entity:
        return name_or_id
    named = StoredView(store, group).entities_named(name_or_id)
    if not named:
        raise NotFound(f"group {group} has no entity {name_or_id!r}")
    if len(named) > 1:
        ids = ", ".join(f"{entity.id} ({entity.name})" for entity in named)
        raise Ambiguous(f"{name_or_id!r} is the name of {len(named)} entities; say which id: {ids}")
    return named[0].id


# ---------------------------------------------------------------------------- the dump and show verbs


def derived(store: Store, group: str, known_at: Instant | None) -> View:
    """Return the graph of a group, derived from its records as known then (None: now)."""

    def read(sequences: Sequence[int]) -> list[Episode]:
        return episodes_at(store, group, sequences)

    return View(records_of(store, group, known_at), read)


def dumped(store: Store, group: str, known_at: Instant | None) -> list[dump.DumpRow]:
    """Return the rows of the dump, unsorted."""
    return at_one_moment(
        store,
        lambda: list(dump.rows(derived(store, group, known_at), dumped_episodes(store, group, known_at))),
    )


def shown(store: Store, group: str, identifier: str) -> list[dump.DumpRow]:
    """Return the dump rows of one episode, entity, statement or fact and of all that belongs to it."""

    def read() -> list[dump.DumpRow]:
        found = find(store, group, identifier)
        if not found:
            raise NotFound(f"group {group} has no episode, entity or fact {identifier!r}")
        view = derived(store, group, None)
        episodes = list(dumped_episodes(store, group))
        waiting = store.pending(group, store.pending_count(group))
        episodes += [item for item in waiting if isinstance(item, Episode)]
        return matches(identifier, found, view, episodes)

    return at_one_moment(store, read)


def matches(identifier: str, found: Bearers, view: View, episodes: Iterable[Episode]) -> list[dump.DumpRow]:
    """Return the dump rows of what has an id and of what belongs to it, in the order of the dump.

    An episode brings its mentions and evidence, and what these are about; an entity its mentions,
    statements, their evidence and facts; a fact or statement its evidence and the episodes behind it.
    """
    rows = list(dump.rows(view, list(episodes)))
    evidence = {(row["episode"], row["ordinal"]): row for row in rows if row["type"] == "evidence"}
    wanted = _Wanted()
    wanted.start(identifier, found, rows, view)
    wanted.spread(rows)
    kept = [row for row in rows if wanted.holds(row, evidence)]
    return sorted(kept, key=lambda row: (row["type"], dump.lines([row])[0]))


class _Wanted:
    """Ids of the rows to show, by type of row."""

    def __init__(self) -> None:
        self.asked: set[str] = set()  # episodes whose mentions and evidence are shown, all of them
        self.episodes: set[str] = set()
        self.entities: set[str] = set()
        self.subjects: set[str] = set()  # entities whose statements are shown
        self.statements: set[str] = set()
        self.relations: set[str] = set()

    def start(self, identifier: str, found: Bearers, rows: list[dump.DumpRow], view: View) -> None:
        """Add what was asked for."""
        self.asked |= {row["id"] for row in _of(rows, "episode") if row["sequence"] in found.episodes}
        if found.entity:
            self.subjects |= {entity.id for entity in view.entities([identifier])}
        if found.fact:
            self.statements |= {row["statement"] for row in _of(rows, "fact") if row["id"] == identifier}
        if found.statement:
            self.statements |= {fact.statement for fact in view.facts_of([identifier], None)} or {identifier}

    def spread(self, rows: list[dump.DumpRow]) -> None:
        """Add what belongs to what was asked for."""
        self.statements |= {
            row["id"] for row in _of(rows, "statement") if {row["subject"], row["object"]} & self.subjects
        }
        self.statements |= {row["statement"] for row in _of(rows, "evidence") if row["episode"] in self.asked}
        for row in _of(rows, "statement"):
            if row["id"] in self.statements:
                self.entities |= {end for end in (row["subject"], row["object"]) if end is not None}
                self.relations.add(row["relation"])
        self.entities |= {row["entity"] for row in _of(rows, "mention") if row["episode"] in self.asked}
        self.entities |= self.subjects
        self.episodes |= self.asked
        for row in _of(rows, "evidence"):
            if row["statement"] in self.statements and not self.asked:
                self.episodes.add(row["episode"])
        self.episodes |= {row["episode"] for row in _of(rows, "mention") if row["entity"] in self.subjects}

    def holds(self, row: dump.DumpRow, evidence: dict[tuple[str, int], dump.DumpRow]) -> bool:
        """Whether a row is shown."""
        match row["type"]:
            case "episode":
                return row["id"] in self.episodes
            case "entity":
                return row["id"] in self.entities
            case "mention":
                return row["episode"] in self.asked or row["entity"] in self.subjects
            case "statement":
                return row["id"] in self.statements
            case "evidence":
                return row["episode"] in self.asked or (
                    not self.asked and row["statement"] in self.statements
                )
            case "verdict":
                return bool({row["a"], row["b"]} & self.statements)
            case "relation":
                return row["name"] in self.relations
            case "merge":
                return bool(set(row["entities"]) & self.entities)
            case "fact":
                ended = evidence.get(tuple(row["ended_by"])) if row["ended_by"] else None
                by_asked = ended is not None and ended["episode"] in self.asked
                return row["statement"] in self.statements or by_asked
        return False


def _of(rows: list[dump.DumpRow], kind: str) -> Iterator[dump.DumpRow]:
    return (row for row in rows if row["type"] == kind)
