"""A graph built by hand, commit by commit, in the real store; the search tests read it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from kgray.domain.graph import Entity, Fact
from kgray.domain.records import (
    Draft,
    Evidence,
    Mention,
    Operation,
    Place,
    Value,
    entity_id,
    fact_id,
    statement_id,
)
from kgray.domain.times import DAY, Instant, parse
from kgray.graph.change import Difference, EpisodeChange
from kgray.ingest.outbox import commit_change, correction_change
from kgray.models.hashing import HashingEmbedder
from kgray.ports import Patch, Store
from kgray.ports.ingest import embedded
from kgray.schema.kinds import EPISODES
from kgray.storage.ledger import accept, episodes_at, request
from kgray.storage.sqlite import open_sqlite

DAY_0 = parse("2026-01-01")[0]


def day(number: int) -> Instant:
    """Return the first instant of a numbered day."""
    return DAY_0 + number * DAY


@dataclass(kw_only=True)
class World:
    """Entities and facts by name; every call commits an episode, recorded on its reference day.

    The store stays locked for writing.
    """

    store: Store
    embedder: HashingEmbedder
    entities: dict[tuple[str, str], Entity] = field(default_factory=dict)
    facts: dict[tuple[str, str], Fact] = field(default_factory=dict)  # (group, text)
    births: dict[str, dict[str, Place]] = field(default_factory=dict)  # by group
    sequences: dict[str, int] = field(default_factory=dict)  # episode id -> sequence

    async def tell(
        self,
        group: str,
        text: str,
        at: Instant,
        facts: Sequence[tuple[str, str, str | Value, str, Instant | None, Instant | None]] = (),
        *,
        ends: Sequence[tuple[str, Instant]] = (),
        names: Sequence[tuple[str, str]] = (),
        source: str = "default",
        client_id: str | None = None,
    ) -> str:
        """Commit an episode and return its id.

        facts   (subject, relation, object or value, wording, valid_at, invalid_at)
        ends    (wording of an earlier fact, when it ended)
        names   (entity, label) it mentions without a fact
        """
        draft = Draft(
            group=group,
            source=source,
            kind="message",
            text=text,
            speaker="Ann",
            reference_time=at,
            client_id=client_id,
        )
        accepted = accept(self.store, [draft], now=at)[0]
        self.sequences[accepted.id] = accepted.sequence
        page = _Page(world=self, group=group, sequence=accepted.sequence, episode=accepted.id)
        page.recorded = max(at, self.last_recorded(group) + 1)
        for name, label in names:
            page.mention(name, label)
        for subject, relation, target, wording, start, end in facts:
            page.say(subject, relation, target, wording, start, end)
        for wording, end in ends:
            old = self.facts[group, wording]
            page.changed[old.id] = replace(old, invalid_at=end, expired_at=page.recorded)
        await page.commit(text)
        return accepted.id

    def retract(self, group: str, episode: str, at: Instant) -> None:
        """Retract one episode, softly, with the facts that it alone supports."""
        operation = Operation(group=group, kind="retract", episodes=(episode,))
        operation = replace(operation, sequence=request(self.store, operation))
        retired_facts = [
            fact for (owner, _), fact in self.facts.items() if owner == group and fact.episodes == (episode,)
        ]
        recorded = max(at, self.last_recorded(group) + 1)
        retired = Patch(kind=EPISODES, columns=("retired_at",), rows=((self.sequences[episode], recorded),))
        difference = Difference(gone_facts=tuple(sorted(fact.id for fact in retired_facts)))
        self.store.apply(
            [correction_change(operation, {"episodes": 1}, recorded, difference, patches=(retired,))]
        )

    def last_recorded(self, group: str) -> Instant:
        """Return the group's newest record time."""
        return self.store.heads([group])[group].last_recorded

    def id_of(self, group: str, name: str) -> str:
        """Return the id of an entity."""
        return self.entities[group, name].id


@contextmanager
def a_world(folder: Path) -> Iterator[World]:
    """Yield an empty world in an embedded store that is locked for writing."""
    embedder = HashingEmbedder(256)
    store = open_sqlite(folder, embedder=embedder.identity, dimensions=embedder.dimensions)
    with store.writing():
        yield World(store=store, embedder=embedder)
    store.close()


async def chain(world: World, group: str) -> None:
    """Add a chain Ann - Ben - Cleo - Dan - Eve, and an unconnected island."""
    for at, (person, acquaintance) in enumerate(pairwise(["Ann", "Ben", "Cleo", "Dan", "Eve"])):
        await world.tell(
            group,
            f"{person} met {acquaintance}.",
            day(at),
            client_id=f"m{at}",
            source="chat" if at % 2 else "mail",
            names=[(person, "Person")],
            facts=[(person, "KNOWS", acquaintance, f"{person} knows {acquaintance}", day(at), None)],
        )
    await world.tell(
        group,
        "Far away Olaf rows.",
        day(9),
        client_id="m9",
        names=[("Olaf", "Sailor")],
        facts=[("Olaf", "OWNS", "boat", "Olaf owns a boat", day(9), None)],
    )


async def jobs(world: World, group: str) -> None:
    """Add case a of the specification: Acme from day 0, Beta from day 60; and a price."""
    await world.tell(
        group,
        "I see that Alice Webb works at Acme.",
        day(0),
        client_id="m1",
        names=[("Alice Webb", "Person")],
        facts=[("Alice Webb", "WORKS_AT", "Acme", "Alice Webb works at Acme", day(0), None)],
    )
    await world.tell(
        group,
        "Now Alice Webb works at Beta!",
        day(60),
        client_id="m2",
        facts=[("Alice Webb", "WORKS_AT", "Beta", "Alice Webb works at Beta", day(60), None)],
        ends=[("Alice Webb works at Acme", day(60))],
    )
    await world.tell(
        group,
        "The lamp costs 80 euros.",
        day(61),
        facts=[("lamp", "COSTS", Value("number", "80", "EUR"), "The lamp costs 80 EUR", day(61), None)],
    )


@dataclass(kw_only=True)
class _Page:
    """The additions of one episode, until it is committed."""

    world: World
    group: str
    sequence: int
    episode: str
    recorded: Instant = 0
    births: list[tuple[str, Place]] = field(default_factory=list)
    mentions: list[Mention] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)
    changed: dict[str, Fact] = field(default_factory=dict)
    new_entities: list[Entity] = field(default_factory=list)
    named: list[Mention] = field(default_factory=list)  # mentions that made an entity
    worded: list[tuple[str, str]] = field(default_factory=list)  # (new statement, its wording)

    def mention(self, name: str, label: str = "") -> int:
        """Return the ordinal of a mention; a new name makes an entity."""
        for earlier in self.mentions:
            if earlier.surface == name:
                return earlier.ordinal
        place = (self.sequence, len(self.mentions))
        if (self.group, name) not in self.world.entities:
            entity = Entity(
                id=entity_id(self.group, place), name=name, labels=(label,) if label else (), born=place
            )
            self.world.entities[self.group, name] = entity
            self.births.append((entity.id, place))
            self.new_entities.append(entity)
        entity = self.world.entities[self.group, name]
        mention = Mention(
            sequence=self.sequence, ordinal=place[1], surface=name, entity=entity.id, type=label
        )
        self.mentions.append(mention)
        if entity.born == place:
            self.named.append(mention)
        return place[1]

    def say(
        self,
        subject: str,
        relation: str,
        target: str | Value,
        wording: str,
        start: Instant | None,
        end: Instant | None,
    ) -> None:
        """Add evidence; a repeated wording supports its fact, a new wording makes a fact."""
        source = self.mention(subject)
        right = self.mention(target) if isinstance(target, str) else None
        place = (self.sequence, len(self.evidence))
        fact_before = self.world.facts.get((self.group, wording))
        ends = [self.world.id_of(self.group, end) for end in (subject, target) if isinstance(end, str)]
        if fact_before and [*fact_before.ends] != ends:  # one sentence tells facts of several
            fact_before = None
        statement = fact_before.statement if fact_before else statement_id(self.group, place)
        self.evidence.append(
            Evidence(
                sequence=self.sequence,
                ordinal=place[1],
                statement=statement,
                variant=0,
                kind="holds",
                relation=relation,
                text=wording,
                subject=source,
                object=right,
                value=target if isinstance(target, Value) else None,
                valid_from=start,
                valid_to=end,
            )
        )
        if fact_before:
            fact = replace(fact_before, episodes=tuple(sorted({*fact_before.episodes, self.episode})))
        else:
            self.births.append((statement, place))
            self.worded.append((statement, wording))
            fact = Fact(
                id=fact_id(statement, place, "start"),
                statement=statement,
                source=self.world.id_of(self.group, subject),
                relation=relation,
                text=wording,
                created_at=self.recorded,
                value=target if isinstance(target, Value) else None,
                target=self.world.id_of(self.group, target) if isinstance(target, str) else None,
                valid_at=start,
                invalid_at=end,
                episodes=(self.episode,),
            )
        self.world.facts[self.group, wording] = self.changed[fact.id] = fact

    async def commit(self, text: str) -> None:
        """Embed and apply."""
        texts = [text, *(mention.surface for mention in self.named), *(wording for _, wording in self.worded)]
        vectors = dict(zip(texts, await embedded(self.world.embedder, texts), strict=True))
        for fact in self.changed.values():
            self.world.facts[self.group, fact.text] = fact
        [episode] = episodes_at(self.world.store, self.group, [self.sequence])
        change = EpisodeChange(
            episode=episode,
            entity_births=tuple(self.births),
            mentions=tuple(self.mentions),
            evidence=tuple(self.evidence),
            name_vectors=tuple((mention, vectors[mention.surface].vector) for mention in self.named),
            statement_vectors=tuple((id_, vectors[wording]) for id_, wording in self.worded),
            episode_vector=vectors[text],
        )
        difference = Difference(
            entities=tuple(sorted(self.new_entities, key=lambda entity: entity.id)),
            facts=tuple(sorted(self.changed.values(), key=lambda fact: fact.id)),
            mentioned=tuple(sorted({(mention.entity, self.sequence) for mention in self.mentions})),
        )
        births = self.world.births.setdefault(self.group, {})
        births.update(self.births)
        self.world.store.apply([commit_change(change, difference, self.recorded, births)])
