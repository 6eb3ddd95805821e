"""Assign each piece of evidence to a statement, after entities and relations are folded (R16, R18).

A statement is identified by its key (subject, relation and object as they show) and a variant. Two wordings
with one key are the same variant unless their marks differ (digits, negation, qualifiers); two events are,
unless their dates differ. A statement has the id of its recorded statement. If a merge folds several recorded
statements, the oldest gives the id. If a split divides one, the part with the founding evidence keeps the id,
and each other part gets the id of its own earliest evidence.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, combinations, count

from kgray.domain.records import (
    EpisodeHead,
    Evidence,
    EvidenceKind,
    ExtractedFact,
    Mention,
    Place,
    Value,
    statement_id,
)
from kgray.domain.times import Instant, to_datetime
from kgray.graph.names import Fold, Relations
from kgray.graph.verbs import ENGLISH
from kgray.timeline import Claim

Marks = tuple[frozenset[str], bool, frozenset[str]]  # digits, negated, qualifiers
StatementKey = tuple[str, str, str | Value]  # subject, shown relation, object entity or value
StatementName = tuple[StatementKey, str, int]  # key, id, variant
MentionsByEpisode = Mapping[int, Mapping[int, Mention]]  # sequence -> ordinal -> mention

WORD = re.compile(r"[^\W_]+(?:[.,:/-][^\W_]+)*(?:['\u2019]t)?", re.UNICODE)
NEGATIONS = frozenset("not no never none without nor cannot nobody nothing neither".split())
# The same in German, Spanish and French, as far as English has no such words.
NEGATIONS |= frozenset(
    "kein keine keinen keinem keiner keines nicht nie niemals nunca jamás pas jamais aucun aucune".split()
)
_QUALIFIERS = frozenset(ENGLISH["qualifiers"])
NOT_ENDINGS = ("n't", "n\u2019t")
# Phrases that only say when: their numbers belong to the fact's dates, not to its wording (R3).
_AMOUNT = r"(?:\d+|an?|one|two|three|four|five|six|seven|eight|nine|ten)"
_UNIT = r"(?:seconds?|minutes?|hours?|days?|weeks?|months?|years?)"
TIME_PHRASE = re.compile(
    rf"\b{_AMOUNT}\s+{_UNIT}\s+(?:ago|later|earlier|from now)\b"
    rf"|\b(?:after|for|within)\s+{_AMOUNT}\s+{_UNIT}\b(?!\s+(?:a|an|per|each|every)\b)",
    re.IGNORECASE,
)
# Words that express an end, not which variant ended.
_ENDED = frozenset(("former", "formerly", "ex"))
CLOSING = frozenset(("ended", "denied"))
_ISO_DATE = re.compile(r"\d{4}-\d{2}(?:-\d{2})?(?:t[\d:.]+z?)?$")


@lru_cache(maxsize=16_384)
def _text_marks(text: str) -> Marks:
    words = WORD.findall(TIME_PHRASE.sub(" ", text).casefold())
    numbers = [w for w in words if not w.isalpha() and re.search(r"\d", w) and not _ISO_DATE.match(w)]
    negated = not NEGATIONS.isdisjoint(words) or any(w.endswith(NOT_ENDINGS) for w in words)
    return frozenset(numbers), negated, _QUALIFIERS.intersection(words)


Standing = tuple[int, Instant, Place]
NAMELESS, _LATE = 2, 1 << 62


def standing_of(evidence: Iterable[tuple[EvidenceKind, Instant | None, Place, bool]]) -> Standing:
    """Return a variant's rank among the variants of its key, for an end or denial that names none (R6, R13).

    evidence  of the variant, as (kind, start, place, whether it names no variant)

    Such an end applies to the variant with the lowest rank, in any order of arrival: the variant that began
    first; else an event, which has no end; else a variant that has only such ends as evidence.
    """
    specific = [(kind, start, place) for kind, start, place, every in evidence if not every]
    if not specific or any(kind == "happened" for kind, _, _ in specific):
        return (1 if specific else NAMELESS), 0, (0, 0)
    starts = [
        (-_LATE if start is None else start, place) for kind, start, place in specific if kind == "holds"
    ]
    return 0, *min(starts, default=(_LATE, specific[0][2]))


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
    first: Evidence  # its earliest evidence
    turned: bool = False  # its key has the ends of the founding evidence the other way round
    in_field: bool = False  # a field of a record says it (R17)
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
    def is_event(self) -> bool:
        """Return whether the statement is an event, at one instant (R18)."""
        return self.first.kind == "happened"

    @property
    def standing(self) -> Standing:
        """Its place among the variants that an end could be about (`standing_of`)."""
        if not self.claims:  # made by the episode that is being decided
            evidence = self.first
            place = (evidence.sequence, evidence.ordinal)
            return standing_of([(evidence.kind, evidence.valid_from, place, evidence.every_variant)])
        own_claims = (c for c in self.claims if not c.other_variant)
        return standing_of((c.kind, c.start, c.said[1:], c.every_variant) for c in own_claims)

    @property
    def key(self) -> StatementKey:
        """Its subject, shown relation, and object or value; its variants share them."""
        return self.subject, self.relation, self.object or self.value  # type: ignore[return-value]


@dataclass(slots=True)  # faster to read than a named tuple
class Spoken:
    """A piece of evidence and its key; None = a loop (subject = object), which derives nothing.

    own_key   the key that its own relation name gives; it differs where the statement has another name (R17c)
    moved_at  record time of the last merge, split, declaration or evidence that gave it another key than the
              recorded one; 0 = none
    turned    as of its statement: whether the key has the ends of the founding evidence the other way round
    """

    evidence: Evidence
    key: StatementKey | None
    moved_at: Instant
    own_key: StatementKey | None = None
    turned: bool = False


def marks_of(wording: Evidence | ExtractedFact) -> Marks:
    """Return a wording's marks without its date, its value, and the words that say an end or a denial."""
    numbers, negated, qualifiers = _text_marks(wording.text)
    if numbers:  # without those that are the year, month or day of a date
        dates = [to_datetime(at) for at in (wording.valid_from, wording.valid_to) if at is not None]
        dated = {str(part) for m in dates for part in (m.year, m.month, m.day)}
        numbers = frozenset(n for n in numbers if n.rstrip("stndrh").lstrip("0") not in dated)
    if wording.value is not None:
        numbers, _, qualifiers = remaining_marks([wording.value.shown()], (numbers, negated, qualifiers))
    if wording.kind in CLOSING:
        return numbers, False, qualifiers - _ENDED
    return numbers, negated, qualifiers


def says_same(first: Evidence | ExtractedFact, second: Evidence | ExtractedFact) -> bool:
    """Return whether two wordings of one key have equal marks, or as events equal dates (R18)."""
    if first.kind == "happened" or second.kind == "happened":
        return first.kind == second.kind and first.valid_from == second.valid_from
    return marks_of(first) == marks_of(second)


def names_variant(marks: Marks, ends: Iterable[str]) -> bool:
    """Return whether a wording with these marks names a variant; ends: names of subject and object (R6)."""
    numbers, _, qualifiers = remaining_marks(ends, marks)
    return bool(numbers or qualifiers)


def remaining_marks(names: Iterable[str], marks: Marks) -> Marks:
    """Return the marks without the digits and qualifiers that these names have themselves."""
    numbers, negated, qualifiers = marks
    for name in names if numbers or qualifiers else ():
        name_numbers, _, name_qualifiers = _text_marks(name)
        numbers, qualifiers = numbers - name_numbers, qualifiers - name_qualifiers
    return numbers, negated, qualifiers


# A key, None for a loop; whether its ends are swapped; and when the relation was last folded.
FoldedKey = tuple[StatementKey | None, bool, Instant]


def fold_key(
    relations: Relations,
    born: Callable[[str], Place],
    relation: str,
    subject: str,
    target: str | Value | None,
) -> FoldedKey:
    """Return the key that these ends and this relation name fold to. Raises ValueError without a target."""
    if target is None:
        raise ValueError(f"evidence of {relation} has neither object nor value")
    name, swapped, folded_at = relations.folded(relation)
    if not isinstance(target, str):
        return (subject, name, target), False, folded_at
    if subject == target:
        return None, False, folded_at
    if swapped:
        subject, target = target, subject
    if relations.traits(name).symmetric and born(target) < born(subject):
        subject, target, swapped = target, subject, not swapped
    return (subject, name, target), swapped, folded_at


# The shown ends of a piece of evidence, and the record time of the last merge or split that moved either.
_Ends = tuple[str, str | Value, Instant]


def _oriented(ends: _Ends, is_reversed: bool) -> tuple[str | Value, str | Value]:
    """Return the ends in the direction of the statement's founding evidence."""
    subject, target, _ = ends
    return (target, subject) if is_reversed else (subject, target)


def by_episode(mentions: Iterable[Mention]) -> MentionsByEpisode:
    """Return the mentions by sequence, then by ordinal: faster to build and to read than by place."""
    by_sequence: defaultdict[int, dict[int, Mention]] = defaultdict(dict)
    for mention in mentions:
        by_sequence[mention.sequence][mention.ordinal] = mention
    return by_sequence


def spoken(
    evidence: Sequence[Evidence],
    mentions: MentionsByEpisode,
    fold: Fold,
    relations: Relations,
    births: Mapping[str, Place],
    heads: Mapping[int, EpisodeHead],
) -> list[Spoken]:
    """Return the evidence in the order given, which is that of places, each with its key as it shows now.

    A statement has one relation name: of its pieces of evidence between the same ends, the earliest whose
    name the ontology lists, else the earliest, gives it (R17c). An end or a denial, "Alice left Acme", gives
    it only to a statement that has no other evidence (R17b). heads: of the episodes, by sequence
    """
    naming = _naming_evidence(evidence, mentions, fold, relations)
    born = births.__getitem__
    pieces = []
    for item in evidence:
        is_reversed = item.is_reversed
        subject, target, moved = ends = _ends_of(item, mentions, fold)
        own_key, own_swapped, folded_at = fold_key(relations, born, item.relation, subject, target)
        namer = naming.get((item.statement, *_oriented(ends, is_reversed))) if naming else None
        if namer is None or namer is item:
            pieces.append(Spoken(item, own_key, max(moved, folded_at), own_key, own_swapped != is_reversed))
            continue
        turns = is_reversed != namer.is_reversed and isinstance(target, str)
        if turns:
            subject, target = str(target), subject
        key, swapped, folded_at = fold_key(relations, born, namer.relation, subject, target)
        is_moved = namer.sequence > item.sequence and key != own_key
        named_at = heads[namer.sequence].recorded_at if is_moved else 0
        turned = (swapped != turns) != is_reversed
        pieces.append(Spoken(item, key, max(moved, folded_at, named_at), own_key, turned))
    return pieces


def _ends_of(item: Evidence, mentions: MentionsByEpisode, fold: Fold) -> _Ends:
    sequence = item.sequence
    of_episode = mentions[sequence]
    subject = of_episode[item.subject]
    shown_subject, moved = fold.shown(subject.entity, subject.surface, sequence)
    if item.object is None:
        if item.value is None:
            raise ValueError(f"evidence of {item.relation} has neither object nor value")
        return shown_subject, item.value, moved
    object_mention = of_episode[item.object]
    target, target_moved = fold.shown(object_mention.entity, object_mention.surface, sequence)
    return shown_subject, target, max(moved, target_moved)


def _naming_evidence(
    evidence: Sequence[Evidence], mentions: MentionsByEpisode, fold: Fold, relations: Relations
) -> dict[tuple[str, str | Value, str | Value], Evidence]:
    """Return the evidence that names a statement, by (recorded statement, oriented ends).

    The result has only recorded statements whose evidence has several relation names or directions: for the
    others every piece gives the same name.
    """
    first: dict[str, Evidence] = {}
    mixed: set[str] = set()
    for item in evidence:
        earliest = first.setdefault(item.statement, item)
        if earliest is not item and (earliest.relation, earliest.is_reversed) != (
            item.relation,
            item.is_reversed,
        ):
            mixed.add(item.statement)
    naming: dict[tuple[str, str | Value, str | Value], Evidence] = {}
    for item in evidence if mixed else ():
        if item.statement not in mixed:
            continue
        key = (item.statement, *_oriented(_ends_of(item, mentions, fold), item.is_reversed))
        current = naming.setdefault(key, item)
        ranks = [(e.kind in CLOSING, not relations.is_listed(e.relation)) for e in (item, current)]
        if ranks[0] < ranks[1]:
            naming[key] = item
    return naming


def name_statements(
    group: str, pieces: list[Spoken], mentions: MentionsByEpisode, births: Mapping[str, Place]
) -> list[StatementName | None]:
    """Return the name of each piece's statement, None for a loop; the pieces are in order of place."""
    named = [
        None if item.key is None else (item.key, item.evidence.statement, item.evidence.variant)
        for item in pieces
    ]
    # The index of the first piece with the same key, and of the first with the same recorded statement.
    same_key = list(map(dict[StatementKey | None, int]().setdefault, [item.key for item in pieces], count()))
    recorded = [item.evidence.statement for item in pieces]
    same_recorded = list(map(dict[str, int]().setdefault, recorded, count()))
    # An unshared key has the whole evidence of a single recorded statement as one variant, which names it.
    shared: set[int] = set()
    for at, (of_key, of_recorded) in enumerate(zip(same_key, same_recorded, strict=True)):
        if at != of_key and named[at] != named[of_key]:
            shared.add(of_key)
        if of_key != same_key[of_recorded]:
            shared.update((of_key, same_key[of_recorded]))
    places = [at for at, of_key in enumerate(same_key) if of_key in shared] if shared else []
    shared_names = _name_shared(group, [pieces[at] for at in places], mentions, births)
    for at, name in zip(places, shared_names, strict=True):
        named[at] = name
    return named


def _name_shared(
    group: str, pieces: list[Spoken], mentions: MentionsByEpisode, births: Mapping[str, Place]
) -> list[StatementName | None]:
    """Name the statements of pieces that share keys: all pieces of their recorded statements."""
    variants = _variants(pieces, mentions, births)
    owner: dict[str, tuple[StatementKey | None, int]] = {}  # recorded statement -> its first part
    for item, variant in zip(pieces, variants, strict=True):
        if item.key is not None:
            owner.setdefault(item.evidence.statement, (item.key, variant))
    _move_nameless(pieces, variants)
    ids: dict[tuple[StatementKey | None, int], str] = {}  # part -> the oldest statement that began there
    parts = [(item.key, variant) for item, variant in zip(pieces, variants, strict=True)]
    for item, part in zip(pieces, parts, strict=True):
        recorded = item.evidence.statement
        oldest = ids.get(part)
        if recorded != oldest and item.key is not None and owner[recorded] == part:
            ids[part] = recorded if oldest is None else min(recorded, oldest, key=lambda s: (births[s], s))
    for item, part in zip(pieces, parts, strict=True):
        if part not in ids:
            ids[part] = statement_id(group, (item.evidence.sequence, item.evidence.ordinal))
    return [None if part[0] is None else (part[0], ids[part], part[1]) for part in parts]


def _move_nameless(pieces: list[Spoken], variants: list[int]) -> None:
    """Move each end and denial that names no variant to the variant of its key that it applies to."""
    keys = {item.key for item in pieces if item.evidence.every_variant}
    indexes: dict[StatementKey, dict[int, list[int]]] = {}  # key -> variant -> indexes
    for at, item in enumerate(pieces) if keys else ():
        if item.key is not None and item.key in keys:
            indexes.setdefault(item.key, {}).setdefault(variants[at], []).append(at)

    def standing(positions: list[int]) -> Standing:
        evidence = (pieces[at].evidence for at in positions)
        return standing_of((e.kind, e.valid_from, (e.sequence, e.ordinal), e.every_variant) for e in evidence)

    for by_variant in indexes.values():
        best = min(by_variant, key=lambda variant: standing(by_variant[variant]))
        for at in chain.from_iterable(by_variant.values()):
            if pieces[at].evidence.every_variant:
                variants[at] = best


def _variants(pieces: list[Spoken], mentions: MentionsByEpisode, births: Mapping[str, Place]) -> list[int]:
    """Return each piece's variant: as recorded, unless statements with other recorded ends share its key."""
    variants = [item.evidence.variant for item in pieces]
    earliest: dict[StatementKey, Evidence] = {}
    meeting: dict[StatementKey, dict[str, Evidence]] = {}  # key -> recorded statement -> earliest evidence
    for item in pieces:
        evidence, key = item.evidence, item.key
        if key is not None and (first := earliest.setdefault(key, evidence)).statement != evidence.statement:
            meeting.setdefault(key, {first.statement: first}).setdefault(evidence.statement, evidence)
    if not meeting:
        return variants
    ends: dict[str, tuple[object, ...]] = {}  # recorded statement -> its recorded ends and relation
    for item in pieces:
        e = item.evidence
        if item.key is not None and e.statement not in ends:
            of_episode = mentions[e.sequence]
            target = e.value if e.object is None else of_episode[e.object].entity
            ends[e.statement] = (e.relation, of_episode[e.subject].entity, target)
    renumbered: dict[StatementKey, dict[str, int]] = {}
    for key, recorded in meeting.items():
        # Distinct recorded variants keep their numbers: a removal may leave a gap in them, and later
        # decisions count on from the remaining numbers. Statements between the same recorded ends were
        # distinguished when they were decided, also by their content words (R17a).
        apart = len({e.variant for e in recorded.values()}) == len(recorded) and (
            len({frozenset(ends[s][1:]) for s in recorded}) == 1
            or not any(says_same(first, second) for first, second in combinations(recorded.values(), 2))
        )
        if len({ends[s] for s in recorded}) > 1 and not apart:
            renumbered[key] = _match_by_wording(recorded, ends, births)
    for at, item in enumerate(pieces):
        if item.key in renumbered:
            variants[at] = renumbered[item.key][item.evidence.statement]
    return variants


def _match_by_wording(
    first: Mapping[str, Evidence], ends: Mapping[str, tuple[object, ...]], births: Mapping[str, Place]
) -> dict[str, int]:
    """Return the variants of one key's recorded statements: one for equal marks, numbered by birth (R16)."""
    numbers: dict[str, int] = {}
    used: list[list[str]] = []
    for statement in sorted(first, key=lambda s: (births[s], s)):
        for number, members in enumerate(used):
            strangers = all(
                ends[m] != ends[statement] or first[m].variant == first[statement].variant for m in members
            )
            if strangers and says_same(first[members[0]], first[statement]):
                members.append(statement)
                numbers[statement] = number
                break
        else:
            numbers[statement] = len(used)
            used.append([statement])
    return numbers
