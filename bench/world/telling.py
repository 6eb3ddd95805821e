"""An episode of a world: its text, what is in it, and the names by which it tells that."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from bench.world.dice import Dice
from bench.world.history import Act
from bench.world.plan import Plan
from bench.world.things import Thing
from bench.world.wording import FILLERS, STATES, closed, opened, sentence
from kgray import times
from kgray.derivation.names import key
from kgray.records import Draft, EpisodeKind, EvidenceKind, Value, canonical
from kgray.times import Instant

UNKNOWN = "unknown"  # a start that the text says is not known, told apart from one that it does not give


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One fact that an episode tells, with the true identity of its ends.

    since, until  "" = not given · "unknown" (since only) · ISO 8601 at its own precision
    source, target  surfaces; target "" beside a value
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


@dataclass(frozen=True, kw_only=True)
class WorldEpisode:
    """One episode with its truth; mentions: (surface, entity id, type), the speaker first."""

    draft: Draft
    said: tuple[Said, ...]
    mentions: tuple[tuple[str, str, str], ...]

    @cached_property
    def extraction_reply(self) -> dict[str, Any]:
        """What a reader that is always right replies (replies.EXTRACTION_SCHEMA)."""
        return reply(self.mentions, self.said)


def reply(mentions: Iterable[tuple[str, str, str]], said: Iterable[Said]) -> dict[str, Any]:
    """Return the extraction reply that tells this and no more."""
    entities = [{"name": surface, "type": kind} for surface, _, kind in mentions]
    at = {entity["name"]: place for place, entity in enumerate(entities)}
    facts = []
    for fact in said:
        item: dict[str, Any] = {
            "source": at[fact.source],
            "relation": fact.relation,
            "fact": fact.text,
            "kind": fact.kind,
        }
        if fact.value is None:
            item["target"] = at[fact.target]
        else:
            item["value"] = fact.value.as_dict()
        if fact.since:
            item["valid_at"] = None if fact.since == UNKNOWN else fact.since
        if fact.until:
            item["invalid_at"] = fact.until
        facts.append(item)
    return {"entities": entities, "facts": facts}


def said_of(act: Act, source: str, target: str) -> Said:
    """Return the fact that an act is."""
    kind: EvidenceKind = "ended" if act.form == "ended" else "denied" if act.form == "denied" else "holds"
    value = act.object if isinstance(act.object, Value) else None
    since = act.since.iso if act.since else UNKNOWN if act.form == "always" else ""
    return Said(
        subject=act.subject.id,
        relation=act.relation.name,
        text=closed(sentence(act, source, target)),
        kind=kind,
        source=source,
        object=act.object.id if isinstance(act.object, Thing) else None,
        value=value,
        target="" if value else target,
        since=since,
        until=act.until.iso if act.until else "",
        why=act.why,
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


class Teller:
    """Tells the acts of one group, in several conversations."""

    def __init__(self, plan: Plan, group: str, things: Iterable[Thing], register: Register) -> None:
        """Start with nothing told."""
        self._first_names = {t.id: t.name.split()[0] for t in things if t.kind == "Person"}
        self._plan = plan
        self._group = group
        self._register = register
        # source -> the last episodes' persons who were named so that anybody knows who is meant.
        self._recent: dict[str, deque[frozenset[str]]] = {}

    def tell(
        self,
        number: int,
        at: Instant,
        source: str,
        kind: EpisodeKind,
        speaker: Thing | None,
        acts: Sequence[Act],
    ) -> WorldEpisode:
        """Return the episode with this number; acts in the order in which it tells them."""
        for attempt in range(100):
            dice = Dice(self._plan.seed, "tell", self._group, number, attempt)
            names = self._names(dice, source, speaker, acts, plain=attempt > 50)
            said = tuple(said_of(act, names[act.subject.id], _target(act, names)) for act in acts)
            mentions = _mentions(speaker, acts, names)
            sentences = self._sentences(dice, number, kind, speaker, acts, names, every=attempt > 0)
            text = sentences[0] if kind == "json" else " ".join(sentences)
            if not self._register.clashes(text, sentences, mentions):
                break
        else:
            raise ValueError(f"episode {number} cannot be told apart from the others")
        self._register.note(text, sentences, mentions)
        full = frozenset(t.id for t in _things(speaker, acts) if key(names[t.id]) != key(t.name.split()[0]))
        self._recent.setdefault(source, deque(maxlen=4)).append(full)
        draft = Draft(
            group=self._group,
            source=source,
            kind=kind,
            text=text,
            speaker=names[speaker.id] if speaker and kind == "message" else None,
            reference_time=at,
            client_id=f"{self._group}-{number:06d}",
        )
        return WorldEpisode(draft=draft, said=said, mentions=mentions)

    def _names(
        self, dice: Dice, source: str, speaker: Thing | None, acts: Sequence[Act], *, plain: bool
    ) -> dict[str, str]:
        """Return entity -> the surface that this episode uses for it."""
        names: dict[str, str] = {}
        here = _things(speaker, acts)
        taken: set[str] = set()
        known = frozenset().union(*self._recent.get(source, ()))
        for thing in here:
            chosen = thing.name
            if not plain and dice.flip(self._plan.alias_rate) and thing.aliases:
                for _ in range(4):
                    how, surface = dice.pick(thing.aliases)
                    if how != "first" or (thing.id in known and self._only(surface, thing, known, here)):
                        chosen = surface
                        break
            if key(chosen) in taken:
                chosen = thing.name
            taken.add(key(chosen))
            names[thing.id] = chosen
        return names

    def _only(self, first: str, thing: Thing, known: frozenset[str], here: Sequence[Thing]) -> bool:
        """Whether nobody else of this first name is spoken of in this conversation."""
        others = {t.id for t in here if t.kind == "Person" and t.name.split()[0] == first}
        others |= {k for k in known if self._first_names.get(k) == first}
        return others <= {thing.id}

    def _sentences(
        self,
        dice: Dice,
        number: int,
        kind: EpisodeKind,
        speaker: Thing | None,
        acts: Sequence[Act],
        names: dict[str, str],
        *,
        every: bool,
    ) -> list[str]:
        if kind == "json":
            return [_as_json(number, acts, names)]
        found = []
        for place, act in enumerate(acts):
            own = kind == "message" and speaker is not None and act.subject.id == speaker.id
            words = sentence(act, names[act.subject.id], _target(act, names), first_person=own)
            if own and not every and place:
                found.append(closed(words))
            else:
                found.append(closed(opened(dice, words)))
        if dice.flip(self._plan.filler):
            found.insert(dice.below(len(found) + 1), f"{dice.pick(FILLERS)}.")
        return found


def _as_json(number: int, acts: Sequence[Act], names: dict[str, str]) -> str:
    records = []
    for act in acts:
        record: dict[str, Any] = {
            "subject": names[act.subject.id],
            "what": act.relation.words[1],
            "object": act.object.as_dict() if isinstance(act.object, Value) else names[act.object.id],
            "state": STATES[act.form],
        }
        if act.form == "always":
            record["from"] = UNKNOWN
        for name, date in (("from", act.since), ("until", act.until)):
            if date is not None:
                record[name] = date.iso
        records.append(record)
    return canonical({"record": f"R-{number:06d}", "entries": records})


def _target(act: Act, names: dict[str, str]) -> str:
    return act.object.shown() if isinstance(act.object, Value) else names[act.object.id]


def _things(speaker: Thing | None, acts: Sequence[Act]) -> list[Thing]:
    found: dict[str, Thing] = {} if speaker is None else {speaker.id: speaker}
    for act in acts:
        for end in (act.subject, act.object):
            if isinstance(end, Thing):
                found.setdefault(end.id, end)
    return list(found.values())


def _mentions(
    speaker: Thing | None, acts: Sequence[Act], names: dict[str, str]
) -> tuple[tuple[str, str, str], ...]:
    return tuple((names[thing.id], thing.id, thing.kind) for thing in _things(speaker, acts))


def start_of(said: Said, said_at: Instant) -> tuple[Instant | None, bool]:
    """Return the start of a `holds`, and whether it is inferred (R3)."""
    if said.since == UNKNOWN:
        return None, False
    start = times.parse_iso(said.since)[0] if said.since else said_at
    return start, start == said_at


def end_of(said: Said, said_at: Instant) -> Instant | None:
    """Return the stated end of a `holds`, or the instant of an `ended`."""
    if said.until:
        return times.parse_iso(said.until)[0]
    return said_at if said.kind == "ended" else None


__all__ = ["Register", "Said", "Teller", "WorldEpisode", "end_of", "reply", "said_of", "start_of"]
