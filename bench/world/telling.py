"""An episode of a world: its text, what is in it, and the names by which it tells that."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from bench.world.dice import Dice
from bench.world.history import Act
from bench.world.naming import NAMES, Naming
from bench.world.plan import WorldPlan
from bench.world.things import Thing
from bench.world.wording import FILLERS, STATES, closed, opened, sentence
from kgray import times
from kgray.derivation.names import key
from kgray.records import Draft, EpisodeKind, EvidenceKind, Value, canonical
from kgray.times import Instant

GIVEN = ("called", "married")  # kinds of names that a text must give before another uses them
UNKNOWN = "unknown"  # a start that the text says is not known, told apart from one that it does not give


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
        """Whether its relation name says that the relation is over: LEFT."""
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
        """What a reader that is always right replies (replies.EXTRACTION_SCHEMA)."""
        return reply(self.mentions, self.said)


def reply(mentions: Iterable[tuple[str, str, str]], said: Iterable[ToldFact]) -> dict[str, Any]:
    """Return the extraction reply that tells this and no more."""
    entities = [{"name": surface, "type": kind} for surface, _, kind in mentions]
    at = {entity["name"]: place for place, entity in enumerate(entities)}
    facts = []
    for fact in said:
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
            # An end that is told as an event, or as a state of its own, has its date as the start.
            item["invalid_at" if fact.kind == kind else "valid_at"] = fact.until
        facts.append(item)
    return {"entities": entities, "facts": facts}


def said_of(act: Act, subject: str, target: str, naming: Naming | None = None) -> ToldFact:
    """Return the fact that an act is; subject, target: the surfaces of the act's subject and object."""
    value = act.object if isinstance(act.object, Value) else None
    naming = naming or Naming(name=NAMES[act.relation.name])
    source, other = (target, subject) if naming.swapped else (subject, target)
    return ToldFact(
        subject=act.subject.id,
        relation=act.relation.name,
        text=closed(sentence(act, source, other, name=naming.name)),
        kind=act.form if act.form in ("ended", "denied") else "holds",
        source=source,
        object=act.object.id if isinstance(act.object, Thing) else None,
        value=value,
        target="" if value else other,
        since=act.since.iso if act.since else UNKNOWN if act.form == "always" else "",
        until=act.until.iso if act.until else "",
        why=act.why,
        name="" if naming.name.name == act.relation.name else naming.name.name,
        reported_as=naming.kind or "",
    )


@dataclass(slots=True)
class Register:
    """Which texts were told, and whom each name meant in them: so that a text can be told from all others."""

    texts: set[int] = field(default_factory=set)
    meant: dict[str, dict[str, set[int]]] = field(default_factory=dict)  # surface -> entity -> sentences

    def clashes(self, text: str, sentences: Sequence[str], mentions: Iterable[tuple[str, str, str]]) -> bool:
        """Whether the text was told before, or a sentence of it, with a name that meant another one there."""
        if _mark(text) in self.texts:
            return True
        marks = {_mark(told) for told in sentences}
        for surface, entity, _ in mentions:
            for other, before in self.meant.get(surface, {}).items():
                if other != entity and not before.isdisjoint(marks):
                    return True
        return False

    def note(self, text: str, sentences: Sequence[str], mentions: Iterable[tuple[str, str, str]]) -> None:
        """Remember an episode."""
        self.texts.add(_mark(text))
        marks = {_mark(told) for told in sentences}
        for surface, entity, _ in mentions:
            self.meant.setdefault(surface, {}).setdefault(entity, set()).update(marks)


def _mark(text: str) -> int:
    """Return what stands for a text: a long stream must not be kept in memory."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


@dataclass(frozen=True, slots=True, kw_only=True)
class Occasion:
    """What an episode is to tell, and when, where and by whom; acts in the order in which it tells them."""

    number: int
    at: Instant
    source: str
    kind: EpisodeKind
    speaker: Thing | None
    acts: Sequence[Act]
    namings: Sequence[Naming]  # of the acts

    def things(self) -> list[Thing]:
        """Return the entities it mentions, the speaker first."""
        found = {} if self.speaker is None else {self.speaker.id: self.speaker}
        for act in self.acts:
            found |= {end.id: end for end in (act.subject, act.object) if isinstance(end, Thing)}
        return list(found.values())


class Teller:
    """Tells the acts of one group, in several conversations."""

    def __init__(self, plan: WorldPlan, group: str, things: Iterable[Thing], register: Register) -> None:
        """Start with nothing told."""
        self._first_names = {t.id: t.name.split()[0] for t in things if t.kind == "Person"}
        self._plan = plan
        self._group = group
        self._register = register
        self._given: set[tuple[str, str]] = set()  # (entity, name) that a text has given
        # source -> the last episodes' persons who were named so that anybody knows who is meant.
        self._recent: dict[str, deque[frozenset[str]]] = {}

    def tell(self, occasion: Occasion) -> WorldEpisode:
        """Return the episode of an occasion, in words that no other episode has."""
        things, speaker, kind = occasion.things(), occasion.speaker, occasion.kind
        for attempt in range(100):
            dice = Dice(self._plan.seed, "tell", self._group, occasion.number, attempt)
            names = self._names(dice, occasion, things, plain=attempt > 50)
            mentions = tuple((names[thing.id], thing.id, thing.kind) for thing in things)
            given = self._to_give(dice, occasion, names)
            sentences = self._sentences(dice, occasion, names, every=attempt > 0)
            sentences += [_gives(occasion, thing, how, other) for thing, how, other in given]
            text = sentences[0] if kind == "json" else " ".join(sentences)
            if not self._register.clashes(text, sentences, mentions):
                break
        else:
            raise ValueError(f"episode {occasion.number} cannot be told apart from the others")
        self._register.note(text, sentences, mentions)
        self._given |= {(thing.id, other) for thing, _, other in given}
        full = frozenset(t.id for t in things if key(names[t.id]) != key(t.name.split()[0]))
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
        said = tuple(
            said_of(
                _as_recorded(act) if kind == "json" else act,
                names[act.subject.id],
                _target(act, names),
                naming,
            )
            for act, naming in zip(occasion.acts, occasion.namings, strict=True)
        )
        told = tuple((other, thing.id) for thing, _, other in given)
        return WorldEpisode(draft=draft, said=said, mentions=mentions, given=told)

    def _to_give(self, dice: Dice, occasion: Occasion, names: dict[str, str]) -> list[tuple[Thing, str, str]]:
        """Return (entity, how, name) to give: of entities that the episode names in full."""
        if occasion.kind == "json":
            return []
        return [
            (thing, how, other)
            for thing in occasion.things()
            for how, other in dict.fromkeys(thing.aliases)
            if how in GIVEN and (thing.id, other) not in self._given and names[thing.id] == thing.name
            if dice.flip(0.5)
        ]

    def _names(
        self, dice: Dice, occasion: Occasion, things: Sequence[Thing], *, plain: bool
    ) -> dict[str, str]:
        """Return entity -> the surface that this episode uses for it."""
        names: dict[str, str] = {}
        known = frozenset().union(*self._recent.get(occasion.source, ()))
        for thing in things:
            chosen = thing.name
            if not plain and dice.flip(self._plan.alias_rate) and thing.aliases:
                for _ in range(4):
                    how, surface = dice.pick(thing.aliases)
                    if how in GIVEN and (thing.id, surface) not in self._given:
                        continue
                    if how != "first" or (thing.id in known and self._only(surface, thing, known, things)):
                        chosen = surface
                        break
            if key(chosen) in {key(name) for name in names.values()}:
                chosen = thing.name
            names[thing.id] = chosen
        return names

    def _only(self, first: str, thing: Thing, known: frozenset[str], here: Sequence[Thing]) -> bool:
        """Whether nobody else of this first name is spoken of in this conversation."""
        others = {t.id for t in here if t.kind == "Person" and t.name.split()[0] == first}
        others |= {k for k in known if self._first_names.get(k) == first}
        return others <= {thing.id}

    def _sentences(self, dice: Dice, occasion: Occasion, names: dict[str, str], *, every: bool) -> list[str]:
        """Return the sentences; every: each has an opening that makes it unlike others."""
        if occasion.kind == "json":
            return [_as_json(occasion, names)]
        speaker, found = occasion.speaker, []
        for place, (act, naming) in enumerate(zip(occasion.acts, occasion.namings, strict=True)):
            first = act.object if naming.swapped else act.subject
            own = occasion.kind == "message" and speaker is not None and first == speaker
            words = sentence(act, *_ends(act, naming, names), name=naming.name, first_person=own)
            found.append(closed(words if own and not every and place else opened(dice, words)))
        if dice.flip(self._plan.filler):
            found.insert(dice.below(len(found) + 1), f"{dice.pick(FILLERS)}.")
        return found


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


def _gives(occasion: Occasion, thing: Thing, how: str, other: str) -> str:
    """Return the sentence that gives another name."""
    if occasion.kind == "message" and occasion.speaker is not None and occasion.speaker.id == thing.id:
        return (
            f"Everybody calls me {other}." if how == "called" else f"I am now {other}, formerly {thing.name}."
        )
    return (
        f"{thing.name} is also known as {other}."
        if how == "called"
        else f"{other}, formerly {thing.name}, is back."
    )


def _target(act: Act, names: dict[str, str]) -> str:
    return act.object.shown() if isinstance(act.object, Value) else names[act.object.id]


def _ends(act: Act, naming: Naming, names: dict[str, str]) -> tuple[str, str]:
    """Return the surfaces of both ends, in the order of the relation's name."""
    subject, target = names[act.subject.id], _target(act, names)
    return (target, subject) if naming.swapped else (subject, target)


def start_of(said: ToldFact, said_at: Instant) -> tuple[Instant | None, bool]:
    """Return the start of a `holds`, and whether it is inferred (R3)."""
    if said.since == UNKNOWN:
        return None, False
    start = times.parse_iso(said.since)[0] if said.since else said_at
    return start, start == said_at


def end_of(said: ToldFact, said_at: Instant) -> Instant | None:
    """Return the stated end of a `holds`, or the instant of an `ended`."""
    if said.until:
        return times.parse_iso(said.until)[0]
    return said_at if said.kind == "ended" else None
