"""The rows of several commits, folded: what a later one says of the same thing replaces the earlier."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kgray import times
from kgray.errors import StoreError
from kgray.graph import Entity, Fact
from kgray.ports import Commit, NamedVector
from kgray.records import EpisodeKind, Mention
from kgray.stores.neo4j import rows
from kgray.stores.neo4j.rows import Values, digest, mark, place_number
from kgray.stores.words import folded, marked, words
from kgray.times import Instant

Key = tuple[Any, ...]  # (group, ...)


@dataclass(slots=True, kw_only=True)
class Standing:
    """What a sequence is before a write: an episode, an operation, or (both None) neither."""

    state: int | None = None
    id: str = ""
    kind: EpisodeKind = "text"
    client_id: str | None = None
    said: Instant = 0
    speaker: str | None = None
    text: str | None = None
    operation_state: int | None = None


@dataclass(slots=True)
class Collected:
    """Rows by the statement that takes them (`statements_commit`), each key once."""

    extractions: dict[Key, Values] = field(default_factory=dict)
    answers: dict[Key, Values] = field(default_factory=dict)
    uses: dict[Key, Values] = field(default_factory=dict)
    births: dict[Key, Values] = field(default_factory=dict)
    mentions: dict[Key, Values] = field(default_factory=dict)
    evidence: dict[Key, Values] = field(default_factory=dict)
    rulings: dict[Key, Values] = field(default_factory=dict)
    verdicts: dict[Key, Values] = field(default_factory=dict)
    names: dict[Key, Values] = field(default_factory=dict)
    name_vectors: dict[Key, Values] = field(default_factory=dict)
    statement_vectors: dict[Key, Values] = field(default_factory=dict)
    episode_vectors: dict[Key, Values] = field(default_factory=dict)
    entities: dict[Key, tuple[Entity, Instant] | None] = field(default_factory=dict)
    facts: dict[Key, Fact | None] = field(default_factory=dict)
    shown: dict[Key, list[str]] = field(default_factory=dict)
    shown_evidence: dict[Key, Values] = field(default_factory=dict)
    extracted: dict[Key, Values] = field(default_factory=dict)
    failed: dict[Key, Values] = field(default_factory=dict)
    retired: dict[Key, Values] = field(default_factory=dict)
    committed: dict[Key, Values] = field(default_factory=dict)
    operations: dict[Key, Values] = field(default_factory=dict)
    linked: dict[Key, Values] = field(default_factory=dict)

    def record(self, commit: Commit) -> None:
        """Add what a commit records."""
        group, at = commit.group, commit.recorded_at
        for recorded, (sequence, ordinal) in commit.births:
            birth = {"group_id": group, "id": recorded, "sequence": sequence, "ordinal": ordinal}
            self.births.setdefault((group, recorded), birth)
        for mention in commit.mentions:
            self.mentions[group, mention.sequence, mention.ordinal] = rows.mention_row(group, mention)
        self._name(group, {(m.sequence, m.ordinal): m for m in commit.mentions})
        shown = dict(commit.derived.shown_statements)
        group_mark = mark(group)
        for item in commit.evidence:
            place = (item.sequence, item.ordinal)
            row = rows.evidence_row(group, item, shown.get(place))
            # The relation's words are found too: "where does she live" meets "moved to Lyon" in LIVES_IN.
            row["words"] = marked(words(f"{item.text} {item.relation.replace('_', ' ')}"), group_mark)
            self.evidence[(group, *place)] = row
        for ruling in commit.rulings:
            self.rulings[group, ruling.sequence, ruling.ordinal] = rows.ruling_row(group, ruling, at)
        for verdict in commit.verdicts:
            self.verdicts[group, verdict.sequence, verdict.ordinal] = rows.verdict_row(group, verdict, at)

    def _name(self, group: str, mentions: dict[tuple[int, int], Mention]) -> None:
        ordered = [mentions[place] for place in sorted(mentions)]
        first = {(m.entity, m.surface): m for m in reversed(ordered)}
        for (entity, surface), uses in Counter((m.entity, m.surface) for m in ordered).items():
            key = (group, entity, digest(surface))
            if key in self.names:
                self.names[key]["uses"] += uses
                continue
            born = first[entity, surface]
            self.names[key] = {
                "group_id": group,
                "entity": entity,
                "digest": key[2],
                "uses": uses,
                "born": place_number(born.sequence, born.ordinal),
                "put": {
                    "surface": surface,
                    "folded": digest(folded(surface)),
                    "words": marked(words(surface), mark(group)),
                },
            }

    def put_vectors(self, commit: Commit, dimensions: int) -> None:
        """Add a commit's vectors; one that is sent again stays where the first stood."""
        for n, named in enumerate(commit.vectors):
            if np.shape(named.vector) != (dimensions,):
                raise StoreError(
                    f"vectors of shape {np.shape(named.vector)} in a store of {dimensions} numbers a vector"
                )
            kept, key, row = self._vector_row(commit.group, named)
            row["embedding"] = np.asarray(named.vector, np.float32).tolist()
            row["place"] = place_number(commit.sequence, n)
            if key not in kept or kept[key]["embedding"] != row["embedding"]:
                kept[key] = row

    def _vector_row(self, group: str, named: NamedVector) -> tuple[dict[Key, Values], Key, Values]:
        row: Values = {"group_id": group}
        match named.kind:
            case "name":
                row |= {"entity": named.owner, "digest": digest(named.text)}
                row |= {"surface": named.text, "folded": digest(folded(named.text))}
                return self.name_vectors, (group, named.owner, row["digest"]), row
            case "statement":
                # A statement has one vector, whatever its wording was: the text is not kept.
                return self.statement_vectors, (group, named.owner), row | {"id": named.owner}
            case _:
                sequence = int(named.owner)
                return self.episode_vectors, (group, sequence), row | {"sequence": sequence}

    def derive(self, commit: Commit) -> None:
        """Add what a commit derives: what goes, then what is put, as one after the other."""
        group, derived = commit.group, commit.derived
        for id_ in derived.gone_facts:
            self.facts[group, id_] = None
        for fact in derived.facts:
            self.facts[group, fact.id] = fact
        for id_ in derived.gone_entities:
            self.entities[group, id_] = None
        for entity in derived.entities:
            self.entities[group, entity.id] = (entity, commit.recorded_at)
        shown: dict[str, list[str]] = {}
        for recorded, as_id in derived.shown_entities:
            shown.setdefault(recorded, []).extend([] if as_id is None else [as_id])
        self.shown |= {(group, recorded): ids for recorded, ids in shown.items()}
        for (sequence, ordinal), statement in derived.shown_statements:
            key = (group, sequence, ordinal)
            if key in self.evidence:
                self.evidence[key]["shown"] = statement
                continue
            place = {"group_id": group, "sequence": sequence, "ordinal": ordinal}
            self.shown_evidence[key] = {**place, "shown": statement}

    def retire(self, commit: Commit) -> None:
        """Add the episodes that a commit retires."""
        for sequence in commit.retired:
            row = {"group_id": commit.group, "sequence": sequence, "at": commit.recorded_at}
            self.retired.setdefault((commit.group, sequence), row)

    def end(self, commit: Commit, standing: Standing, body: str, payload: str | None) -> None:
        """Add the ledger's row: the episode is committed, or the operation has its result."""
        key = (commit.group, commit.sequence)
        row: Values = {"group_id": commit.group, "sequence": commit.sequence}
        if commit.operation is not None:
            ended = {"state": rows.DONE, "recorded_at": commit.recorded_at, "result": body}
            self.operations[key] = row | ended | {"payload": payload}
            return
        text = standing.text or ""
        found = words(f"{standing.speaker} {text}" if standing.speaker else text)
        put = rows.shown_episode(standing.kind, standing.client_id, standing.id, standing.said)
        facts = sorted(f.id for f in commit.derived.facts if standing.id in f.episodes)
        put |= {
            "state": rows.COMMITTED,
            "ended_at": commit.recorded_at,
            "created_at": times.to_datetime(commit.recorded_at),
            "entity_edges": facts,
            "words": marked(found, mark(commit.group)),
        }
        self.committed[key] = row | {"put": put}
        self.linked[key] = row


def fact_rows(
    facts: dict[Key, Fact | None], kept: Collection[Key]
) -> tuple[list[Values], list[Values], list[Values]]:
    """Return the rows of CHANGE_FACTS (kept empty), and of what then is new: between entities, of values."""
    changed: list[Values] = []
    new: list[Values] = []
    new_values: list[Values] = []
    for group, id_ in sorted(facts):
        fact = facts[group, id_]
        row: Values = {"group_id": group, "uuid": id_, "source": None, "end": None, "put": None}
        if fact is not None:
            shown = None if fact.value is None else fact.value.shown()
            row |= {"source": fact.source, "end": id_ if fact.target is None else fact.target}
            row |= {"put": rows.fact_row(group, fact), "value": shown}
            if (group, id_) not in kept:
                (new_values if fact.target is None else new).append(row)
        changed.append(row)
    return changed, new, new_values
