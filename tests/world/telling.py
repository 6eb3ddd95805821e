"""An episode of a world: its text, its facts, and the names in it."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from kgray.domain import times
from kgray.domain.records import Draft, EpisodeKind, EvidenceKind, Value, canonical
from kgray.domain.times import Instant
from kgray.graph.names import key
from tests.world.dice import Dice
from tests.world.history import Act
from tests.world.naming import NAMES, Naming
from tests.world.plan import WorldPlan
from tests.world.things import WorldEntity
from tests.world.wording import FILLERS, STATES, closed, opened, sentence

INTRODUCED_FORMS = ("called", "married")  # kinds of names that a text must give before another uses them
UNKNOWN = "unknown"  # a start that the text calls unknown; "" = it has no start


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldFact:
    """One fact that an episode tells, with the true identity of its ends.

    since, until  "" = not given · "unknown" (since only) · ISO 8601 at its own precision
    source, target  surfaces in the order of the reader's relation name; target "" beside a value
    name, reported_as   the reader's name of the relation and kind of evidence; "" = relation and kind
    """

    subject: str
    relation: str
    text: str
    kind: EvidenceKind
    source: str
    object: str | None = None
    value: Value | None = None
    target: str = ""
    since: str = ""
    until: str = ""
    why: str = "fresh"
    name: str = ""
    reported_as: EvidenceKind | Literal[""] = ""

    @property
    def is_named_end(self) -> bool:
        """Tell whether its relation name says that the relation is over: LEFT."""
        return bool(self.name) and NAMES[self.name].ends


@dataclass(frozen=True, kw_only=True)
class WorldEpisode:
    """One episode with its truth; mentions: (surface, entity id, type), the speaker first.

    given: (surface, entity id) of names that the text gives, and that a reader does not list
    """

    draft: Draft
    said: tuple[ToldFact, ...]
    mentions: tuple[tuple[str, str, str], ...]
    given: tuple[tuple[str, str], ...] = ()

    @cached_property
    def extraction_reply(self) -> dict[str, Any]:
        """The reply of a perfect reader (replies.EXTRACTION_SCHEMA)."""
        return reply(self.mentions, self.said)


def reply(mentions: Iterable[tuple[str, str, str]], stated: Iterable[ToldFact]) -> dict[str, Any]:
    """Return the extraction reply with exactly these mentions and facts."""
    entities = [{"name": surface, "type": kind} for surface, _, kind in mentions]
    at = {entity["name"]: place for place, entity in enumerate(entities)}
    facts = []
    for fact in stated:
        kind = fact.reported_as or fact.kind
        item = {
            "source": at[fact.source],
            "relation": fact.name or fact.relation,
            "fact": fact.text,
            "kind": kind,
        }
        if fact.value is None:
            item["target"] = at[fact.target]
        else:
            item["value"] = fact.value.as_dict()
        if fact.since:
            item["valid_at"] = None if fact.since == UNKNOWN else fact.since
        if fact.until:
            # An end that is stated as an event, or as a separate state, has its date as the start.
            item["invalid_at" if fact.kind == kind else "valid_at"] = fact.until
        facts.append(item)
    return {"entities": entities, "facts": facts}


def said_of(act: Act, subject: str, target: str, naming: Naming | None = None) -> ToldFact:
    """Return the fact that an act is; subject, target: the surfaces of the act's subject and object."""
    value = act.object if isinstance(act.object, Value) else None
    naming = naming or Naming(name=NAMES[act.relation.name])
    source, object_name = (target, subject) if naming.swapped else (subject, target)
    return ToldFact(
        subject=act.subject.id,
        relation=act.relation.name,
        text=closed(sentence(act, source, object_name, name=naming.name)),
        kind=act.form if act.form in ("ended", "denied") else "holds",
        source=source,
        object=act.object.id if isinstance(act.object, WorldEntity) else None,
        value=value,
        target="" if value else object_name,
        since=act.since.iso if act.since else UNKNOWN if act.form == "always" else "",
        until=act.until.iso if act.until else "",
        why=act.why,
        name="" if naming.name.name == act.relation.name else naming.name.name,
        reported_as=naming.kind or "",
    )


@dataclass(slots=True)
class Register:
    """The texts so far, and the entities of their names: every text must differ from all others."""

    texts: set[int] = field(default_factory=set)
    entity_of_name: dict[str, dict[str, set[int]]] = field(
        default_factory=dict
    )  # surface -> entity -> sentences

    def clashes(self, text: str, sentences: Sequence[str], mentions: Iterable[tuple[str, str, str]]) -> bool:
        """Tell whether the text, or a sentence of it, occurred before with a name of another entity."""
        if _mark(text) in self.texts:
            return True
        marks = {_mark(sentence) for sentence in sentences}
        for surface, entity, _ in mentions:
            for entity_before, marks_before in self.entity_of_name.get(surface, {}).items():
                if entity_before != entity and not marks_before.isdisjoint(marks):
                    return True
        return False

    def note(self, text: str, sentences: Sequence[str], mentions: Iterable[tuple[str, str, str]]) -> None:
        """Remember an episode."""
        self.texts.add(_mark(text))
        marks = {_mark(sentence) for sentence in sentences}
        for surface, entity, _ in mentions:
            self.entity_of_name.setdefault(surface, {}).setdefault(entity, set()).update(marks)


def _mark(text: str) -> int:
    """Return a short hash of a text: a long stream must not stay in memory."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


@dataclass(frozen=True, slots=True, kw_only=True)
class Occasion:
    """The content of an episode with its time, source and speaker; acts in the order of its sentences."""

    number: int
    at: Instant
    source: str
    kind: EpisodeKind
    speaker: WorldEntity | None
    acts: Sequence[Act]
    namings: Sequence[Naming]  # of the acts

    def entities(self) -> list[WorldEntity]:
        """Return the entities it mentions, the speaker first."""
        entities = {} if self.speaker is None else {self.speaker.id: self.speaker}
        for act in self.acts:
            entities |= {end.id: end for end in (act.subject, act.object) if isinstance(end, WorldEntity)}
        return list(entities.values())


class Teller:
    """Tells the acts of one group, in several conversations."""

    def __init__(
        self, plan: WorldPlan, group: str, entities: Iterable[WorldEntity], register: Register
    ) -> None:
        """Start without any stated fact."""
        self._first_names = {t.id: t.name.split()[0] for t in entities if t.kind == "Person"}
        self._plan = plan
        self._group = group
        self._register = register
        self._introduced: set[tuple[str, str]] = set()  # (entity, name) that a text has given
        # source -> the last episodes' persons who were named so that anybody knows who is meant.
        self._recent: dict[str, deque[frozenset[str]]] = {}

    def tell(self, occasion: Occasion) -> WorldEpisode:
        """Return the episode of an occasion, in words that no other episode has."""
        entities, speaker, kind = occasion.entities(), occasion.speaker, occasion.kind
        for attempt in range(100):
            dice = Dice(self._plan.seed, "tell", self._group, occasion.number, attempt)
            names = self._names(dice, occasion, entities, plain=attempt > 50)
            mentions = tuple((names[entity.id], entity.id, entity.kind) for entity in entities)
            introductions = self._to_give(dice, occasion, names)
            sentences = self._sentences(dice, occasion, names, every=attempt > 0)
            sentences += [_gives(occasion, entity, form, alias) for entity, form, alias in introductions]
            text = sentences[0] if kind == "json" else " ".join(sentences)
            if not self._register.clashes(text, sentences, mentions):
                break
        else:
            raise ValueError(f"episode {occasion.number} cannot be told apart from the others")
        self._register.note(text, sentences, mentions)
        self._introduced |= {(entity.id, alias) for entity, _, alias in introductions}
        full = frozenset(t.id for t in entities if key(names[t.id]) != key(t.name.split()[0]))
        self._recent.setdefault(occasion.source, deque(maxlen=4)).append(full)
        draft = Draft(
            group=self._group,
            source=occasion.source,
            kind=kind,
            text=text,
            speaker=names[speaker.id] if speaker and kind == "message" else None,
            reference_time=occasion.at,
            client_id=f"{self._group}-{occasion.number:06d}",
        )
        facts = tuple(
            said_of(
                _as_recorded(act) if kind == "json" else act,
                names[act.subject.id],
                _target(act, names),
                naming,
            )
            for act, naming in zip(occasion.acts, occasion.namings, strict=True)
        )
        introduced_names = tuple((alias, entity.id) for entity, _, alias in introductions)
        return WorldEpisode(draft=draft, said=facts, mentions=mentions, given=introduced_names)

    def _to_give(
        self, dice: Dice, occasion: Occasion, names: dict[str, str]
    ) -> list[tuple[WorldEntity, str, str]]:
        """Return (entity, how, name) to give: of entities that the episode names in full."""
        if occasion.kind == "json":
            return []
        return [
            (entity, form, alias)
            for entity in occasion.entities()
            for form, alias in dict.fromkeys(entity.aliases)
            if form in INTRODUCED_FORMS
            and (entity.id, alias) not in self._introduced
            and names[entity.id] == entity.name
            if dice.flip(0.5)
        ]

    def _names(
        self, dice: Dice, occasion: Occasion, entities: Sequence[WorldEntity], *, plain: bool
    ) -> dict[str, str]:
        """Return entity -> the surface that this episode uses for it."""
        names: dict[str, str] = {}
        recent = frozenset().union(*self._recent.get(occasion.source, ()))
        for entity in entities:
            chosen = entity.name
            if not plain and dice.flip(self._plan.alias_rate) and entity.aliases:
                for _ in range(4):
                    form, surface = dice.pick(entity.aliases)
                    if form in INTRODUCED_FORMS and (entity.id, surface) not in self._introduced:
                        continue
                    if form != "first" or (
                        entity.id in recent and self._only(surface, entity, recent, entities)
                    ):
                        chosen = surface
                        break
            if key(chosen) in {key(name) for name in names.values()}:
                chosen = entity.name
            names[entity.id] = chosen
        return names

    def _only(
        self, first: str, entity: WorldEntity, recent: frozenset[str], present: Sequence[WorldEntity]
    ) -> bool:
        """Tell whether this conversation has no other person with this first name."""
        bearers = {t.id for t in present if t.kind == "Person" and t.name.split()[0] == first}
        bearers |= {k for k in recent if self._first_names.get(k) == first}
        return bearers <= {entity.id}

    def _sentences(self, dice: Dice, occasion: Occasion, names: dict[str, str], *, every: bool) -> list[str]:
        """Return the sentences; every: each has an opening that makes it unlike others."""
        if occasion.kind == "json":
            return [_as_json(occasion, names)]
        speaker, sentences = occasion.speaker, []
        for place, (act, naming) in enumerate(zip(occasion.acts, occasion.namings, strict=True)):
            first = act.object if naming.swapped else act.subject
            is_first_person = occasion.kind == "message" and speaker is not None and first == speaker
            words = sentence(act, *_ends(act, naming, names), name=naming.name, first_person=is_first_person)
            sentences.append(
                closed(words if is_first_person and not every and place else opened(dice, words))
            )
        if dice.flip(self._plan.filler):
            sentences.insert(dice.number_below(len(sentences) + 1), f"{dice.pick(FILLERS)}.")
        return sentences


def _as_json(occasion: Occasion, names: dict[str, str]) -> str:
    records = []
    for act, naming in zip(occasion.acts, occasion.namings, strict=True):
        source, target = _ends(act, naming, names)
        ends = naming.name.ends
        record: dict[str, Any] = {
            "subject": source,
            "what": naming.name.words[2 if ends else 1],
            "object": act.object.as_dict() if isinstance(act.object, Value) else target,
            "state": STATES["event" if ends else act.form],
        }
        if act.form == "always":
            record["from"] = UNKNOWN
        record |= {name: date.iso for name, date in (("from", act.since), ("until", act.until)) if date}
        records.append(record)
    return canonical({"record": f"R-{occasion.number:06d}", "entries": records})


def _as_recorded(act: Act) -> Act:
    """Return the act with its dates as a JSON record writes them: a reader finds no other words there."""
    since, until = (date and replace(date, words=date.iso, relative=False) for date in (act.since, act.until))
    return replace(act, since=since, until=until)


def _gives(occasion: Occasion, entity: WorldEntity, form: str, alias: str) -> str:
    """Return the sentence that gives another name."""
    if occasion.kind == "message" and occasion.speaker is not None and occasion.speaker.id == entity.id:
        return (
            f"Everybody calls me {alias}."
            if form == "called"
            else f"I am now {alias}, formerly {entity.name}."
        )
    return (
        f"{entity.name} is also known as {alias}."
        if form == "called"
        else f"{alias}, formerly {entity.name}, is back."
    )


def _target(act: Act, names: dict[str, str]) -> str:
    return act.object.shown() if isinstance(act.object, Value) else names[act.object.id]


def _ends(act: Act, naming: Naming, names: dict[str, str]) -> tuple[str, str]:
    """Return the surfaces of both ends, in the order of the relation's name."""
    subject, target = names[act.subject.id], _target(act, names)
    return (target, subject) if naming.swapped else (subject, target)


def start_of(fact: ToldFact, said_at: Instant) -> tuple[Instant | None, bool]:
    """Return the start of a `holds`, and whether it is inferred (R3)."""
    if fact.since == UNKNOWN:
        return None, False
    start = times.parse_iso(fact.since)[0] if fact.since else said_at
    return start, start == said_at


def end_of(fact: ToldFact, said_at: Instant) -> Instant | None:
    """Return the stated end of a `holds`, or the instant of an `ended`."""
    if fact.until:
        return times.parse_iso(fact.until)[0]
    return said_at if fact.kind == "ended" else None
