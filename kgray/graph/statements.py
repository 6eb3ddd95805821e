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
from kgray.graph.sentences import ENGLISH
from kgray.schema.kinds import ShownEvidenceRow
from kgray.timeline import Claim

Marks = tuple[frozenset[str], bool, frozenset[str]]  # digits, negated, qualifiers
StatementKey = tuple[str, str, str | Value]  # subject, shown relation, object entity or value
StatementIdentity = tuple[StatementKey, str, int]  # key, id, variant
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


# A variant's rank for an end without a variant: an end or a denial that names none of the variants (R6, R13).
# It is recorded with the variant of lowest rank, in any order of arrival: the state that began first; else an
# event, which no end changes; else a variant that has only such ends as evidence.
EndRank = tuple[int, Instant, Place]
_STATE, _EVENT, ENDS_ONLY = range(3)
_LATE = 1 << 62


def end_rank_of(evidence: Iterable[tuple[EvidenceKind, Instant | None, Place, bool]]) -> EndRank:
    """Return the rank of the variant with this evidence: (kind, start, place, end without a variant)."""
    specific = [(kind, start, place) for kind, start, place, every in evidence if not every]
    if not specific or any(kind == "happened" for kind, _, _ in specific):
        return (_EVENT if specific else ENDS_ONLY), 0, (0, 0)
    starts = [
        (-_LATE if start is None else start, place) for kind, start, place in specific if kind == "holds"
    ]
    return _STATE, *min(starts, default=(_LATE, specific[0][2]))


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
    key_is_reversed: bool = False  # the key's subject is the object of its founding evidence
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
    def end_rank(self) -> EndRank:
        """Its rank among the variants of its key, for an end without a variant."""
        if not self.claims:  # made by the episode that is being decided
            evidence = self.first
            place = (evidence.sequence, evidence.ordinal)
            return end_rank_of([(evidence.kind, evidence.valid_from, place, evidence.every_variant)])
        own_claims = (c for c in self.claims if not c.other_variant)
        return end_rank_of((c.kind, c.start, c.said[1:], c.every_variant) for c in own_claims)

    @property
    def key(self) -> StatementKey:
        """Its subject, shown relation, and object or value; its variants share them."""
        return self.subject, self.relation, self.object or self.value  # type: ignore[return-value]


@dataclass(slots=True)  # faster to read than a named tuple
class KeyedEvidence:
    """A piece of evidence and its key; None = a loop (subject = object), which derives nothing.

    own_key          the key that its own relation name gives; it differs if the statement has another name
                     (R17c)
    moved_at         record time of the last merge, split, declaration or evidence that gave it another key
                     than the recorded one; 0 = none
    key_is_reversed  as of its statement: the key's subject is the object of the founding evidence

    Example: "Alice works at Acme" founds a statement. WORKS_AT is declared as the inverse of EMPLOYS, so the
    key is (Acme, EMPLOYS, Alice), and `key_is_reversed`. A later "Acme employs Alice" has the flag
    `Evidence.is_reversed`.
    """

    evidence: Evidence
    key: StatementKey | None
    moved_at: Instant
    own_key: StatementKey | None = None
    key_is_reversed: bool = False


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


# A key, None for a loop; whether its subject is the given target; and when the relation was last folded.
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


def with_keys(
    evidence: Sequence[Evidence],
    mentions: MentionsByEpisode,
    fold: Fold,
    relations: Relations,
    births: Mapping[str, Place],
    heads: Mapping[int, EpisodeHead],
) -> list[KeyedEvidence]:
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
            key_is_reversed = own_swapped != is_reversed
            pieces.append(KeyedEvidence(item, own_key, max(moved, folded_at), own_key, key_is_reversed))
            continue
        # The namer's relation is read in the namer's direction.
        opposes_namer = is_reversed != namer.is_reversed and isinstance(target, str)
        if opposes_namer:
            subject, target = str(target), subject
        key, swapped, folded_at = fold_key(relations, born, namer.relation, subject, target)
        is_moved = namer.sequence > item.sequence and key != own_key
        named_at = heads[namer.sequence].recorded_at if is_moved else 0
        # Three comparisons make the last: key with namer, namer with this piece, this piece with the founder.
        key_is_reversed = (swapped != opposes_namer) != is_reversed
        pieces.append(KeyedEvidence(item, key, max(moved, folded_at, named_at), own_key, key_is_reversed))
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


def identify_statements(
    group: str, pieces: list[KeyedEvidence], mentions: MentionsByEpisode, births: Mapping[str, Place]
) -> list[StatementIdentity | None]:
    """Return the identity of each piece's statement, None for a loop; the pieces are in order of place."""
    identities = [
        None if item.key is None else (item.key, item.evidence.statement, item.evidence.variant)
        for item in pieces
    ]
    # The index of the first piece with the same key, and of the first with the same recorded statement.
    same_key = list(map(dict[StatementKey | None, int]().setdefault, [item.key for item in pieces], count()))
    recorded = [item.evidence.statement for item in pieces]
    same_recorded = list(map(dict[str, int]().setdefault, recorded, count()))
    # If a key belongs to one recorded statement with one variant, and that statement has no other key, the
    # recorded id and variant stay.
    shared: set[int] = set()
    for at, (of_key, of_recorded) in enumerate(zip(same_key, same_recorded, strict=True)):
        if at != of_key and identities[at] != identities[of_key]:
            shared.add(of_key)
        if of_key != same_key[of_recorded]:
            shared.update((of_key, same_key[of_recorded]))
    places = [at for at, of_key in enumerate(same_key) if of_key in shared] if shared else []
    identities_of_shared = _identify_shared(group, [pieces[at] for at in places], mentions, births)
    for at, identity in zip(places, identities_of_shared, strict=True):
        identities[at] = identity
    return identities


def _identify_shared(
    group: str, pieces: list[KeyedEvidence], mentions: MentionsByEpisode, births: Mapping[str, Place]
) -> list[StatementIdentity | None]:
    """Return the identities for pieces that share keys: all pieces of their recorded statements."""
    variants = _variants(pieces, mentions, births)
    owner: dict[str, tuple[StatementKey | None, int]] = {}  # recorded statement -> its first part
    for item, variant in zip(pieces, variants, strict=True):
        if item.key is not None:
            owner.setdefault(item.evidence.statement, (item.key, variant))
    _move_ends_without_variant(pieces, variants)
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


def _move_ends_without_variant(pieces: list[KeyedEvidence], variants: list[int]) -> None:
    """Move each end without a variant to the variant of its key with the lowest rank."""
    keys = {item.key for item in pieces if item.evidence.every_variant}
    indexes: dict[StatementKey, dict[int, list[int]]] = {}  # key -> variant -> indexes
    for at, item in enumerate(pieces) if keys else ():
        if item.key is not None and item.key in keys:
            indexes.setdefault(item.key, {}).setdefault(variants[at], []).append(at)

    def end_rank(positions: list[int]) -> EndRank:
        evidence = (pieces[at].evidence for at in positions)
        return end_rank_of((e.kind, e.valid_from, (e.sequence, e.ordinal), e.every_variant) for e in evidence)

    for by_variant in indexes.values():
        best = min(by_variant, key=lambda variant: end_rank(by_variant[variant]))
        for at in chain.from_iterable(by_variant.values()):
            if pieces[at].evidence.every_variant:
                variants[at] = best


def _variants(
    pieces: list[KeyedEvidence], mentions: MentionsByEpisode, births: Mapping[str, Place]
) -> list[int]:
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
        # decisions continue after the remaining numbers. Statements between the same recorded ends were
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
            may_join = all(
                ends[m] != ends[statement] or first[m].variant == first[statement].variant for m in members
            )
            if may_join and says_same(first[members[0]], first[statement]):
                members.append(statement)
                numbers[statement] = number
                break
        else:
            numbers[statement] = len(used)
            used.append([statement])
    return numbers


def evidenced_statements(
    pieces: Sequence[KeyedEvidence], identities: Sequence[StatementIdentity | None]
) -> set[str]:
    """Return the statements with other evidence than ends without a variant; none if there is no such end."""
    if not any(item.evidence.every_variant for item in pieces):
        return set()
    return {
        identity[1]
        for item, identity in zip(pieces, identities, strict=True)
        if identity is not None and not item.evidence.every_variant
    }


def moved_evidence(
    places: Mapping[Place, str], evidence: Iterable[Evidence], retired: Iterable[Evidence] = ()
) -> dict[Place, ShownEvidenceRow]:
    """Return the evidence that is about another statement than the recorded one, by place.

    places   place of live evidence -> the statement that it shows as
    retired  evidence that is about no statement any more
    """
    statements = ((e, places.get((e.sequence, e.ordinal))) for e in evidence)
    pairs = (*((e, id_) for e, id_ in statements if id_ != e.statement), *((e, None) for e in retired))
    moved = (ShownEvidenceRow(e.sequence, e.ordinal, e.statement, id_) for e, id_ in pairs)
    return {(row.sequence, row.ordinal): row for row in moved}
