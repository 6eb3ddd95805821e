"""Which statement each piece of evidence is about, once entities and relations are folded (R16, R18).

A statement is identified by its key (subject, relation and object as they show) and a variant: two wordings
of one key are one variant unless their marks differ (digits, negation, qualifiers). Its id:

one recorded statement       that one's id
several, folded by a merge   the id of the one born first
divided by a split           the part with the founding evidence keeps the id; another part gets the id of its
                             own earliest evidence
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from kgray.derivation.entities import Fold
from kgray.derivation.relations import Folded, Relations
from kgray.records import Evidence, ExtractedFact, Mention, Place, Value, statement_id
from kgray.timeline import Claim
from kgray.times import Instant, to_datetime

Marks = tuple[frozenset[str], bool, frozenset[str]]  # digits, negated, qualifiers
StatementKey = tuple[str, str, str | Value]  # subject, shown relation, object entity or value

_WORD = re.compile(r"[^\W_]+(?:[.,:/-][^\W_]+)*(?:['\u2019]t)?", re.UNICODE)
_NEGATIONS = frozenset("not no never none without nor cannot nobody nothing neither".split())
_QUALIFIERS = frozenset(
    """part-time full-time freelance temporary temporarily interim acting former formerly ex partly mostly
    only except unless rarely sometimes occasionally often usually always remotely jointly privately publicly
    secretly officially unofficially allegedly reportedly probably possibly maybe apparently decaf iced hot
    cold black green red blue white raw cooked dark light beta alpha preview draft final internal external
    junior senior deputy assistant honorary""".split()
)
# Phrases that only say when: their numbers belong to the fact's dates, not to its wording (R3).
_AGO = re.compile(
    r"\b(?:\d+|an?|one|two|three|four|five|six|seven|eight|nine|ten)\s+"
    r"(?:seconds?|minutes?|hours?|days?|weeks?|months?|years?)\s+(?:ago|later|earlier|from now)\b",
    re.IGNORECASE,
)
_MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec".split()
_ISO_DATE = re.compile(r"\d{4}-\d{2}(?:-\d{2})?(?:t[\d:.]+z?)?$")


@lru_cache(maxsize=16_384)
def _text_marks(text: str) -> Marks:
    words = [w.casefold() for w in _WORD.findall(_AGO.sub(" ", text))]
    numbers = frozenset(w for w in words if any(c.isdigit() for c in w))
    negated = any(w in _NEGATIONS or w.endswith(("n't", "n\u2019t")) for w in words)
    return numbers, negated, frozenset(w for w in words if w in _QUALIFIERS)


def _wording_marks(text: str, dates: tuple[Instant | None, ...] = ()) -> Marks:
    """Return the marks of a wording, without the digits that only state these dates."""
    numbers, negated, qualifiers = _text_marks(text)
    if numbers:
        numbers = frozenset(n for n in numbers if not _is_date_part(n, dates))
    return numbers, negated, qualifiers


def _is_date_part(number: str, dates: tuple[Instant | None, ...]) -> bool:
    if _ISO_DATE.match(number):
        return True
    for instant in dates:
        if instant is None:
            continue
        moment = to_datetime(instant)
        plain = number.rstrip("stndrh").lstrip("0")
        if plain in {str(moment.year), str(moment.day), str(moment.month)}:
            return True
    return False


@dataclass(slots=True)
class Statement:
    """A derived statement with its evidence, in order of place."""

    id: str
    born: Place
    subject: str
    relation: str
    object: str | None
    value: Value | None
    variant: int
    first: Evidence  # its first evidence, whose wording is its card (R21)
    claims: list[Claim] = field(default_factory=list)
    _marks: Marks | None = None

    @property
    def wording(self) -> str:
        """Its first wording."""
        return self.first.text

    @property
    def marks(self) -> Marks:
        """The marks of its first wording, computed on first use."""
        if self._marks is None:
            self._marks = marks_of(self.first)
        return self._marks

    @property
    def key(self) -> StatementKey:
        """What it says, without its variant."""
        return self.subject, self.relation, self.object or self.value  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Spoken:
    """A piece of evidence and its folded key; None = a loop (subject = object), which derives nothing."""

    evidence: Evidence
    key: StatementKey | None
    # Record time of the last merge, split or ruling that gave it a key other than the recorded one; 0 = none.
    moved_at: Instant


def marks_of(said: Evidence | ExtractedFact) -> Marks:
    """Return the marks of a wording, without its dates and value.

    The negation in the wording of an end or a denial expresses that kind, so it does not count.
    """
    numbers, negated, qualifiers = _wording_marks(said.text, (said.valid_from, said.valid_to))
    if said.value is not None:
        told, _, _ = _wording_marks(said.value.shown())
        numbers = numbers - told
    return numbers, negated and said.kind == "holds", qualifiers


def fold_key(
    relations: Relations,
    born: Callable[[str], Place],
    relation: str,
    subject: str,
    target: str | Value,
) -> tuple[StatementKey | None, Folded]:
    """Return the key that subject, relation and object fold to, None for a loop; and the folded relation."""
    folded = relations.folded(relation)
    if isinstance(target, Value):
        return (subject, folded.name, target), folded
    if subject == target:
        return None, folded
    if folded.flipped:
        subject, target = target, subject
    if relations.traits(folded.name).symmetric and born(target) < born(subject):
        subject, target = target, subject
    return (subject, folded.name, target), folded


def spoken(
    evidence: Iterable[Evidence],
    mentions: Mapping[Place, Mention],
    fold: Fold,
    relations: Relations,
    births: Mapping[str, Place],
) -> list[Spoken]:
    """Return the evidence in the order given, each with its key as the graph shows it now."""
    found = []
    for item in evidence:
        subject = mentions[item.sequence, item.subject]
        shown, moved = fold.shown(subject.entity, subject.surface, item.sequence)
        target: str | Value
        if item.object is not None:
            other = mentions[item.sequence, item.object]
            target, moved_too = fold.shown(other.entity, other.surface, item.sequence)
            moved = max(moved, moved_too)
        elif item.value is not None:
            target = item.value
        else:  # the store's check prevents this; a wrong row must not derive anything
            raise ValueError(f"evidence {item.sequence}.{item.ordinal} has neither object nor value")
        key, folded = fold_key(relations, births.__getitem__, item.relation, shown, target)
        found.append(Spoken(item, key, max(moved, folded.since)))
    return found


def name_statements(
    group: str,
    said: list[Spoken],
    mentions: Mapping[Place, Mention],
    births: Mapping[str, Place],
) -> dict[Place, tuple[str, int]]:
    """Return evidence place -> (statement id, variant); loops are left out. `said` is in order of place."""
    variants = _variants(said, mentions, births)
    owner: dict[str, tuple[StatementKey, int]] = {}
    parts: dict[tuple[StatementKey, int], list[Spoken]] = {}
    for item, variant in zip(said, variants, strict=True):
        if item.key is None:
            continue
        part = (item.key, variant)
        owner.setdefault(item.evidence.statement, part)
        parts.setdefault(part, []).append(item)
    named: dict[Place, tuple[str, int]] = {}
    for part, items in parts.items():
        held = {i.evidence.statement for i in items}
        kept = [s for s in held if owner[s] == part]
        first = items[0].evidence
        if kept:
            shown = min(kept, key=lambda s: (births[s], s))
        else:
            shown = statement_id(group, (first.sequence, first.ordinal))
        for item in items:
            named[item.evidence.sequence, item.evidence.ordinal] = (shown, part[1])
    return named


def _variants(
    said: list[Spoken], mentions: Mapping[Place, Mention], births: Mapping[str, Place]
) -> list[int]:
    """Return each evidence's variant: as recorded, unless statements of other recorded ends share its key."""
    origins: dict[StatementKey, set[tuple[object, ...]]] = {}
    of: dict[str, tuple[object, ...]] = {}
    for item in said:
        if item.key is None:
            continue
        e = item.evidence
        if e.statement not in of:
            target = e.value if e.object is None else mentions[e.sequence, e.object].entity
            of[e.statement] = (mentions[e.sequence, e.subject].entity, e.relation, target)
        origins.setdefault(item.key, set()).add(of[e.statement])
    mixed: dict[StatementKey, dict[str, Evidence]] = {
        key: {} for key, meeting in origins.items() if len(meeting) > 1
    }
    if not mixed:
        return [item.evidence.variant for item in said]
    for item in said:
        if item.key in mixed:
            mixed[item.key].setdefault(item.evidence.statement, item.evidence)
    renumbered = {key: _match_by_wording(first, of, births) for key, first in mixed.items()}
    return [
        renumbered[item.key][item.evidence.statement] if item.key in renumbered else item.evidence.variant
        for item in said
    ]


def _match_by_wording(
    first: Mapping[str, Evidence], of: Mapping[str, tuple[object, ...]], births: Mapping[str, Place]
) -> dict[str, int]:
    """Return the variants of one key's recorded statements: equal marks are one, others by birth (R16).

    first: recorded statement -> its earliest evidence
    """
    numbers: dict[str, int] = {}
    used: list[list[str]] = []
    for statement in sorted(first, key=lambda s: (births[s], s)):
        meant = marks_of(first[statement])
        for number, members in enumerate(used):
            strangers = all(
                of[m] != of[statement] or first[m].variant == first[statement].variant for m in members
            )
            if strangers and marks_of(first[members[0]]) == meant:
                members.append(statement)
                numbers[statement] = number
                break
        else:
            numbers[statement] = len(used)
            used.append([statement])
    return numbers
