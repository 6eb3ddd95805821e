"""Values that are recorded once and never rewritten, and their ids (R19, R21).

Ids are UUIDv5, so the same input gets the same ids on every machine and in every run.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from decimal import Decimal, InvalidOperation
from typing import Any, Literal, NamedTuple

from kgray.domain import times
from kgray.domain.times import Instant, Precision
from kgray.errors import Cost, InputError

EpisodeKind = Literal["message", "text", "json", "triples"]
EvidenceKind = Literal["holds", "ended", "denied", "happened"]
State = Literal["accepted", "extracted", "committed", "failed", "withdrawn"]
ValueType = Literal["text", "number", "date", "boolean"]
Place = tuple[int, int]  # (sequence, ordinal): where in the group's order something was recorded

EPISODE_KINDS: tuple[EpisodeKind, ...] = ("message", "text", "json", "triples")
GROUP_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
MAX_CLIENT_ID = 256
MAX_RELATION = 64
_WORD_BORDER = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")  # worksAt, HTTPServer
_SURROGATE = re.compile("[\ud800-\udfff]")
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)
_PLAIN_DIGITS = 40  # numbers longer than this are written with an exponent
_NAMESPACE = uuid.UUID("6f1c1f5e-0d43-5b5c-9d5e-1f0b8e0c7a11").bytes
_UUID_MASK = ~(0xF << 76 | 3 << 62)  # all bits but those of the version and the variant
_UUID_VERSION_5 = 5 << 76 | 2 << 62


def check_group(name: str) -> str:
    """Return the name unchanged. Raises InputError where it cannot be a group's name."""
    if not GROUP_NAME.fullmatch(name):
        shown = ascii(name[:80]) + ("..." if len(name) > 80 else "")
        raise InputError(f"group {shown} is not a name: use 1 to 128 of A-Z a-z 0-9 _ . -", field="group")
    return name


def canonical(value: object) -> str:
    """Return the canonical JSON text of a value: sorted keys, no spaces, UTF-8 unescaped."""
    return _CANONICAL.encode(value)


def make_id(*parts: object) -> str:
    """Return the UUIDv5 of the parts; two different part lists never give the same text.

    The code follows RFC 9562, section 5.5: `uuid.uuid5` takes three times as long, and an episode has dozens
    of ids.
    """
    digest = hashlib.sha1(_NAMESPACE + canonical(parts).encode(), usedforsecurity=False).digest()
    number = int.from_bytes(digest[:16]) & _UUID_MASK | _UUID_VERSION_5
    text = f"{number:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


@dataclass(frozen=True, slots=True)
class Value:
    """The object of a fact that is no entity. Values are equal if all their fields are."""

    type: ValueType
    # number: shortest decimal string; text: NFC, single spaces; date: ISO at its own precision (2026,
    # 2026-03, 2026-03-01, or an instant); boolean: "true" or "false"
    value: str
    unit: str | None = None  # upper-cased

    def as_dict(self) -> dict[str, str | None]:
        """Return the form of the dump."""
        return {"type": self.type, "value": self.value, "unit": self.unit}

    def shown(self) -> str:
        """Return the text for a person to read."""
        return f"{self.value} {self.unit}" if self.unit else self.value


def clean_text(text: str) -> str:
    """Return NFC with single spaces: names and text values are compared in this form."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def is_storable(text: str) -> bool:
    """Return whether a text can be stored. A lone surrogate cannot, so no id or name has one."""
    return _SURROGATE.search(text) is None


def clean_relation(text: str) -> str:
    """Return a relation's name in UPPER_SNAKE (R18): "works at", "worksAt" and "WORKS-AT" are WORKS_AT.

    Letters and digits of any script stay. Cleaning a clean name changes nothing.
    Raises ValueError where no letter is left, or more than MAX_RELATION characters.
    """
    words = _WORD_BORDER.sub("_", unicodedata.normalize("NFKC", text)).upper()
    # Twice: a few characters are compatibility forms again once they are upper-cased.
    words = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", words).upper())
    characters = (c if c.isalnum() or unicodedata.category(c)[0] == "M" else "_" for c in words)
    name = "_".join(part for part in "".join(characters).split("_") if part)
    if not any(c.isalpha() for c in name):
        raise ValueError(f"{text[:80]!r} names no relation: it has no letter")
    if len(name) > MAX_RELATION:
        raise ValueError(f"{text[:80]!r} is too long for a relation: at most {MAX_RELATION} characters")
    return name


def clean_number(number: float | str | Decimal) -> str:
    """Return the shortest decimal text: 100.0, "1e2" and "100" are "100". Raises ValueError."""
    try:
        sign, digits, exponent = Decimal(str(number).strip()).as_tuple()
    except InvalidOperation:
        raise ValueError(f"{str(number)[:80]!r} is not a number") from None
    if not isinstance(exponent, int):
        raise ValueError(f"{number!r} is not a finite number")
    integer = "".join(map(str, digits)).lstrip("0")
    significant = integer.rstrip("0")
    if not significant:
        return "0"
    exponent += len(integer) - len(significant)
    shortest = Decimal((sign, tuple(map(int, significant)), exponent))
    plain = max(len(significant), len(significant) + exponent, -exponent) <= _PLAIN_DIGITS
    return format(shortest, "f" if plain else "E")


def as_value(raw: object) -> Value:
    """Return the `Value` of a text, number, boolean or {"value", "type"?, "unit"?}. Raises ValueError."""
    fields: Mapping[str, Any] = raw if isinstance(raw, dict) else {"value": raw}
    inner, unit, kind = fields.get("value"), fields.get("unit"), fields.get("type")
    if unit is not None and not isinstance(unit, str):
        raise ValueError("a value's unit is a text")
    if kind is None:
        kind = {bool: "boolean", int: "number", float: "number"}.get(type(inner), "text")
    unit = clean_text(unit or "").upper() or None
    match kind, inner:
        case "boolean", bool() | "true" | "false":
            return Value("boolean", str(inner).lower(), unit)
        case "number", int() | float() | str() if not isinstance(inner, bool):
            return Value("number", clean_number(inner), unit)
        case "date", str():
            return Value("date", times.show_as(*times.parse_iso(inner)), unit)
        case "text", str() if text := clean_text(inner):
            return Value("text", text, unit)
        case (("boolean" | "number" | "date" | "text"), _):
            raise ValueError(f"{str(inner)[:80]!r} is no value of type {kind}")
    raise ValueError(f"{str(kind)[:80]!r} is no type of value: text, number, date, boolean")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """An episode as submitted: validated, not yet accepted."""

    group: str
    source: str
    kind: EpisodeKind
    text: str  # for `json` and `triples` the canonical JSON of their content
    speaker: str | None = None
    reference_time: Instant | None = None  # None = the time of first acceptance (R19)
    client_id: str | None = None
    metadata: str = "{}"  # canonical JSON object of the fields kgray does not know

    @property
    def content_sha256(self) -> str:
        """Hex digest of kind, speaker, text and, where given, the reference time (R19)."""
        content = [self.kind, self.speaker, self.text, self.reference_time]
        return hashlib.sha256(canonical(content).encode()).hexdigest()

    @property
    def id(self) -> str:
        """The episode's id (R19): by the client's id, else by its content."""
        if self.client_id is not None:
            return make_id("episode", self.group, "client", self.client_id)
        content = (self.source, self.content_sha256, self.reference_time)
        return make_id("episode", self.group, "content", *content)

    def episode(self, sequence: int, *, now: Instant, state: State = "accepted") -> Episode:
        """Return the accepted episode; now: the reference time of a draft without one."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        at = now if self.reference_time is None else self.reference_time
        values |= {"id": self.id, "content_sha256": self.content_sha256, "reference_time": at, "state": state}
        return Episode(**values, sequence=sequence)


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One accepted raw unit; (group, sequence) names the row, `id` the live one."""

    group: str
    sequence: int
    id: str
    source: str
    kind: EpisodeKind
    text: str
    reference_time: Instant
    content_sha256: str
    speaker: str | None = None
    client_id: str | None = None
    metadata: str = "{}"
    state: State = "accepted"
    bulk: bool = False  # in the backfill lane; has no effect on the graph
    attempts: int = 0  # failed attempts, including those of the sequences that it was retried from

    def head(self, recorded_at: Instant) -> EpisodeHead:
        """Return the episode's place on both clocks; recorded_at: the record time of its commit."""
        return EpisodeHead(self.sequence, self.id, self.reference_time, recorded_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractedEntity:
    """A name that an episode mentions."""

    name: str
    type: str = ""  # CamelCase label such as Person; "" = not known
    span: tuple[int, int] | None = None  # characters [from, to) in the episode's text
    # The index of the entity whose key this name is (its own index where a record has no other name). A thing
    # with this key is that entity, and a thing with another key is not.
    key_of: int | None = None
    in_context: bool = False  # the previous context names it, too (R14a)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractedFact:
    """The words of an episode about one statement; indexes point into `Extraction.entities`.

    Either target or value is set.

    valid_from  of "holds": None is an unknown start ("always", R1); of "happened": the instant of the event,
                never None; of "ended" and "denied" it is not used
    valid_to    of "holds": the stated end; of "ended": the instant, never None
    inferred    the start comes from the present tense, or equals the reference time (R3)
    only        no other object holds at the same time, as in a field of a record, whatever the cardinality of
                the relation is elsewhere
    """

    source: int
    relation: str  # UPPER_SNAKE, <= 64 characters
    text: str  # one sentence
    kind: EvidenceKind = "holds"
    target: int | None = None
    value: Value | None = None
    valid_from: Instant | None = None
    valid_to: Instant | None = None
    from_precision: Precision | None = None
    to_precision: Precision | None = None
    inferred: bool = False
    only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """The result of model calls, with their cost."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def cost(self) -> Cost:
        """The cost as one value."""
        return Cost(self.calls, self.prompt_tokens, self.completion_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extraction(Spent):
    """The model's reading of one episode, stored as a whole."""

    entities: tuple[ExtractedEntity, ...] = ()  # the first is the speaker of a message (R18)
    facts: tuple[ExtractedFact, ...] = ()
    dropped: tuple[str, ...] = ()  # a line for each item of the answer that failed validation (R24)
    model: str = ""
    prompts: tuple[str, ...] = ()  # hashes of the prompts that were used


# How a mention found its entity: by an equal name, by code that compares spellings, or by a model's answer. A
# merge by a person acts on mentions later, without changing them.
ResolvedBy = Literal["name", "code", "model"]


def speaker_first(extraction: Extraction, episode: Episode) -> Extraction:
    """Return the extraction with the speaker of a message as entities[0], inserted or moved there (R18).

    The speaker's own spelling wins over a spelling that differs only in case. Other kinds are unchanged.
    """
    speaker = clean_text(episode.speaker or "")
    if episode.kind != "message" or not speaker:
        return extraction
    entities = list(extraction.entities)
    if entities and entities[0].name == speaker:
        return extraction
    names = [entity.name for entity in entities]
    folded = [name.casefold() for name in names]
    if speaker.casefold() not in folded:
        entities.append(ExtractedEntity(name=speaker, span=find_name(speaker, episode.text)))
        names.append(speaker)
    at = names.index(speaker) if speaker in names else folded.index(speaker.casefold())
    entities[at] = replace(entities[at], name=speaker)
    other_places = (place for place in range(len(entities)) if place != at)
    return with_entities(replace(extraction, entities=tuple(entities)), [at, *other_places])


def with_entities(extraction: Extraction, places: Sequence[int]) -> Extraction:
    """Return the extraction with only the entities at these places, in this order, and facts between them."""
    moved: dict[int | None, int] = {old: new for new, old in enumerate(places)}
    return replace(
        extraction,
        entities=tuple(
            entity if entity.key_of is None else replace(entity, key_of=moved.get(entity.key_of))
            for entity in (extraction.entities[place] for place in places)
        ),
        facts=tuple(
            replace(fact, source=moved[fact.source], target=moved.get(fact.target))
            for fact in extraction.facts
            if fact.source in moved and (fact.target is None or fact.target in moved)
        ),
    )


def find_name(name: str, text: str) -> tuple[int, int] | None:
    """Return (start, end) of the name's first occurrence as whole words; None if it does not occur."""
    at = text.find(name)
    while at >= 0:
        end = at + len(name)
        if not (text[at - 1 : at].isalnum() or text[end : end + 1].isalnum()):
            return at, end
        at = text.find(name, end)
    return None


class Mention(NamedTuple):  # a load makes 200,000 of them
    """A surface form in an episode and the entity it was resolved to when it was committed."""

    sequence: int
    ordinal: int
    surface: str
    entity: str  # the recorded entity id; merges and splits fold it when the graph is derived
    type: str = ""
    sentence: str = ""  # where it stood, cut to 240 characters: the entity's card (R21)
    key: bool = False  # the surface is the key of a record: no other record has it
    resolved_by: ResolvedBy = "name"
    span: tuple[int, int] | None = None


class Evidence(NamedTuple):  # a load makes 100,000 of them
    """A piece of evidence: by one episode a statement holds, ended, was denied, or happened (R18)."""

    sequence: int
    ordinal: int
    statement: str  # the recorded statement id; derivation may fold or split it (R16)
    variant: int
    kind: EvidenceKind
    relation: str  # in the words of the episode
    text: str
    subject: int  # ordinal of the subject's mention in the same episode
    object: int | None = None  # ordinal of the object's mention, or None beside a value
    value: Value | None = None
    valid_from: Instant | None = None
    valid_to: Instant | None = None
    from_precision: Precision | None = None
    to_precision: Precision | None = None
    inferred: bool = False
    fact_group: int | None = None  # ordinal of the first evidence with the same text (R18)
    every_variant: bool = False  # an end or a denial that names no variant concerns all variants (R6)
    is_reversed: bool = False  # subject and object are exchanged, compared with the founding evidence (R17c)
    is_field: bool = False  # it is a field of a JSON record, which holds one value at a time (R17)


Aspect = Literal["listed", "cardinality", "symmetric", "pair", "text"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """One aspect of a relation name in the ontology; the newest declaration of an aspect holds (R17).

    aspect  "listed":      value is yes | no: whether the ontology lists the name
            "cardinality": value is single | single_object | many | depends | unknown (declared no longer)
            "symmetric":   value is yes | no
            "text":        value is the wording in the text of a fact; "": the words of the name
            "pair":        value is the relation of `name` to `other`: same_as | inverse_of | excludes | none
                           (declared no longer)
    """

    sequence: int
    ordinal: int
    name: str
    aspect: Aspect
    value: str
    other: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A judgement on two statements: can both hold at one moment? a < b are recorded statement ids.

    subjects: the subjects of the statements at that time; the evidence is in episodes that mention them
    """

    sequence: int
    ordinal: int
    a: str
    b: str
    exclusive: bool
    judge: str
    reason: str = ""
    subjects: tuple[str, ...] = ()


OperationKind = Literal["merge", "split", "distinct", "undo", "retract", "remove"]
WITHDRAWALS = frozenset({"retract", "remove"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A correction with its place in the group's order (R16, R25, R27).

    merge           entities: the two requested ids
    distinct        entities: two ids of different entities; neither is a candidate for the other
    split           entities: (the id,), surfaces: those of the other entity. Set when it is carried out:
                    moved: keys of the surfaces, made: the id of their entity, minted: whether that id is new;
                    else a merge had folded it (R16)
    undo            target: the sequence of the merge, split or distinction that ends
    retract/remove  the group's episodes by ids (our ids or the client's) | source | everything;
                    replaces: the episode gives way to other content, and may be accepted again (R19)

    births          set when it is carried out: the birth places of these entities, (id, sequence, ordinal)
    retired         set when a retraction is carried out: the verdicts and declarations that it retired, each
                    as ("verdict" or "declaration", sequence, ordinal)
    """

    group: str
    sequence: int = 0  # given by the store
    kind: OperationKind
    entities: tuple[str, ...] = ()
    surfaces: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    made: str = ""
    minted: bool = False
    target: int | None = None
    episodes: tuple[str, ...] = ()
    source: str | None = None
    everything: bool = False
    replaces: bool = False
    births: tuple[tuple[str, int, int], ...] = ()
    retired: tuple[tuple[str, int, int], ...] = ()

    @property
    def withdraws(self) -> bool:
        """Whether it is a retraction or a removal: these go before all pending entries (R27)."""
        return self.kind in WITHDRAWALS


class EpisodeHead(NamedTuple):
    """The part of an episode that derivation uses: its place on both clocks."""

    sequence: int
    id: str
    reference_time: Instant
    recorded_at: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecords:
    """The live records of one group, as known now or at an earlier record time; lists in order of place.

    `heads` has the committed episodes that were not retracted, replaced or retried by then; `mentions` and
    `evidence` belong to these episodes. Declarations, verdicts and operations are complete.
    """

    group: str
    heads: list[EpisodeHead] = field(default_factory=list)
    mentions: list[Mention] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)
    declarations: list[Declaration] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)  # merge, split, undo
    # Record time of each sequence that declarations, verdicts and operations carry.
    recorded: dict[int, Instant] = field(default_factory=dict)
    # Shown entity -> its name, where episodes that are not listed may mention it, too.
    names: dict[str, str] = field(default_factory=dict)
    births: dict[str, Place] = field(default_factory=dict)  # recorded id -> the place that made it
    last_recorded: Instant = 0  # the group's newest record time


def entity_id(group: str, place: Place) -> str:
    """Id of the entity that the mention at `place` made."""
    return make_id("entity", group, *place)


def statement_id(group: str, place: Place) -> str:
    """Id of the statement that the evidence at `place` made."""
    return make_id("statement", group, *place)


def fact_id(statement: str, place: Place, point: str) -> str:
    """Id of the span that the evidence at `place` opened by a start, confirmation or end (R12)."""
    return make_id("fact", statement, *place, point)
