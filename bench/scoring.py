"""A graph against the truth of its world: identities, facts, answers to questions."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from bench.reading import ShownGraph
from kgray.domain import times
from kgray.domain.graph import Fact
from kgray.domain.times import DAY, Instant
from tests.world.naming import NAMES, RelationName
from tests.world.questions import TrueObject, TrueObjects, TrueSlot, WorldQuestion, true_answers
from tests.world.schema import RELATIONS, leads
from tests.world.truth import TrueFact, TrueKey, Truth

_NEAR = DAY  # two boundaries are the same where they lie no further apart


@dataclass(slots=True)
class Scores:
    """Shares of 1, days, and counts. Accuracy: the whole set of objects of a slot is as it should be.

    ended, inv_*   spans that ended, in the truth; their recall and precision, the day of the end included
    named_*        of them, facts whose end has its own relation name: "left", "sold"
    """

    mentions: int = 0
    mention_recall: float = 0.0
    er_precision: float = 0.0
    er_recall: float = 0.0
    er_f1: float = 0.0
    er_bcubed_f1: float = 0.0
    facts: int = 0
    fact_recall: float = 0.0
    fact_precision: float = 0.0
    duplicate_rate: float = 0.0
    ended: int = 0
    named_ends: int = 0
    named_end_recall: float = 1.0
    inv_precision: float = 0.0
    inv_recall: float = 0.0
    boundary_error_days: float = 0.0
    questions: int = 0
    acc_now: float = 0.0
    acc_asof: float = 0.0
    acc_asknown: float = 0.0
    stale_rate: float = 0.0
    faults: list[str] = field(
        default_factory=list
    )  # the first wrong answers, for people who look for a cause


@dataclass(frozen=True, slots=True)
class Matched:
    """How the graph's entities and the true ones go together, by their mentions."""

    true_of: Mapping[str, str]  # graph's entity -> the true entity of most of its mentions
    best: Mapping[str, str]  # true entity -> the graph's entity with most of its mentions


def match_entities(graph: ShownGraph, truth: Truth, scores: Scores) -> Matched:
    """Compare mentions: match entities of the graph to true entities."""
    entity_of_mention = {
        (episode.draft.client_id, surface): entity
        for episode, _ in truth.readings
        for surface, entity, _ in episode.mentions
    }
    table: Counter[tuple[str, str]] = Counter()
    for client, surface, graph_entity in graph.mentions:
        entity = entity_of_mention.get((client, surface))
        if entity is not None:
            table[graph_entity, entity] += 1
    shown_sizes: Counter[str] = Counter()
    true_sizes: Counter[str] = Counter()
    for (graph_entity, entity), count in table.items():
        shown_sizes[graph_entity] += count
        true_sizes[entity] += count
    total = table.total()
    scores.mentions = total
    scores.mention_recall = total / len(entity_of_mention) if entity_of_mention else 1.0
    both = sum(map(_pairs, table.values()))
    scores.er_precision = _share(both, sum(map(_pairs, shown_sizes.values())))
    scores.er_recall = _share(both, sum(map(_pairs, true_sizes.values())))
    scores.er_f1 = _f1(scores.er_precision, scores.er_recall)
    precise = _share(sum(n * n / shown_sizes[s] for (s, _), n in table.items()), total)
    complete = _share(sum(n * n / true_sizes[e] for (_, e), n in table.items()), total)
    scores.er_bcubed_f1 = _f1(precise, complete)
    true_of = {s: max((n, e) for (rival, e), n in table.items() if rival == s)[1] for s in shown_sizes}
    best = {e: max((n, s) for (s, rival), n in table.items() if rival == e)[1] for e in true_sizes}
    for (graph_entity, entity), count in sorted(table.items()):
        if best[entity] != graph_entity or true_of[graph_entity] != entity:
            graph_name, rival = graph.names[graph_entity], graph.names[best[entity]]
            _fault(scores, f"entity: {count} of {entity} in {graph_name}, beside {rival}")
    return Matched(true_of, best)


def _pairs(count: int) -> int:
    return count * (count - 1) // 2


def _share(part: float, total: float) -> float:
    return part / total if total else 1.0


def _f1(precision: float, recall: float) -> float:
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


# -------------------------------------------------------------------------------------- facts


def score_facts(graph: ShownGraph, matched: Matched, truth: Truth, scores: Scores) -> None:
    """Compare spans statement by statement."""
    true = _by_key(truth.facts())
    facts_by_key: dict[TrueKey, list[Fact]] = defaultdict(list)
    statements: dict[TrueKey, set[str]] = defaultdict(set)
    for fact, name in _states(graph.facts):
        key = _key(fact, name, matched)
        facts_by_key[key].append(fact)
        statements[key].add(fact.statement)
    every = sum(map(len, statements.values()))
    scores.duplicate_rate = _share(every - len(statements), every) if every else 0.0
    pairs: list[tuple[TrueFact | None, Fact | None]] = []
    for key in {**true, **facts_by_key}:
        pairs += _paired(true.get(key, []), facts_by_key.get(key, []))
    scores.facts = sum(t is not None for t, _ in pairs)
    both = [(t, f) for t, f in pairs if t is not None and f is not None]
    hits = sum(_near(t.valid_at, f.valid_at) for t, f in both)
    scores.fact_recall = _share(hits, scores.facts)
    scores.fact_precision = _share(hits, sum(f is not None for _, f in pairs))
    ended = sum(t is not None and t.invalid_at is not None for t, _ in pairs)
    claimed = sum(f is not None and f.invalid_at is not None for _, f in pairs)
    gaps = [
        abs(t.invalid_at - f.invalid_at)
        for t, f in both
        if t.invalid_at is not None and f.invalid_at is not None
    ]
    right = sum(gap <= _NEAR for gap in gaps)
    scores.ended = ended
    named = [
        f is not None and _near(t.invalid_at, f.invalid_at)
        for t, f in pairs
        if t is not None and t.invalid_at is not None and (t.key, t.invalid_at) in truth.named_ends
    ]
    scores.named_ends, scores.named_end_recall = len(named), _share(sum(named), len(named))
    scores.inv_recall, scores.inv_precision = _share(right, ended), _share(right, claimed)
    scores.boundary_error_days = statistics.fmean(gaps) / DAY if gaps else 0.0
    for t, f in pairs:
        if (
            t is None
            or f is None
            or not _near(t.valid_at, f.valid_at)
            or not _near(t.invalid_at, f.invalid_at)
        ):
            _fault(scores, f"fact: should be {_description(t)}, is {_description(f)}")


def _paired(true: list[TrueFact], facts: list[Fact]) -> list[tuple[TrueFact | None, Fact | None]]:
    """Pair the spans of a statement: equal starts first, then the remaining spans in order."""
    pairs: list[tuple[TrueFact | None, Fact | None]] = []
    remaining = list(facts)
    unpaired = []
    for fact in true:
        near = [f for f in remaining if _near(fact.valid_at, f.valid_at)]
        if near:
            chosen = min(near, key=lambda f: (not _near(f.invalid_at, fact.invalid_at), f.id))
            remaining.remove(chosen)
            pairs.append((fact, chosen))
        else:
            unpaired.append(fact)
    remaining.sort(key=lambda f: (f.valid_at or 0, f.id))
    while unpaired and remaining:
        pairs.append((unpaired.pop(0), remaining.pop(0)))
    return [*pairs, *((fact, None) for fact in unpaired), *((None, fact) for fact in remaining)]


def _near(a: Instant | None, b: Instant | None) -> bool:
    return a == b or (a is not None and b is not None and abs(a - b) <= _NEAR)


def _states(facts: Iterable[Fact]) -> Iterator[tuple[Fact, RelationName | None]]:
    """Yield the facts of states and events of the world, with the meaning of their relation's name.

    A fact with a named end ("left") that starts is the record of the end itself, no state. One with an
    unknown start says until when the state held.
    """
    for fact in facts:
        name = NAMES.get(fact.relation)
        if name is None or not name.ends or fact.valid_at is None:
            yield fact, name


def _key(fact: Fact, name: RelationName | None, matched: Matched) -> TrueKey:
    """Return the world's statement that a fact makes, whichever name its relation has."""
    source = matched.true_of.get(fact.source, f"?{fact.source}")
    if fact.target is None:
        return source, name.relation if name else fact.relation, fact.value or "?"
    target = matched.true_of.get(fact.target, f"?{fact.target}")
    if name is None:
        return source, fact.relation, target
    symmetric = RELATIONS[name.relation].symmetric and not target.startswith("?") and leads(target)
    return (target, name.relation, source) if name.reversed or symmetric else (source, name.relation, target)


def _by_key(facts: Iterable[TrueFact]) -> dict[TrueKey, list[TrueFact]]:
    facts_by_key: dict[TrueKey, list[TrueFact]] = defaultdict(list)
    for fact in facts:
        facts_by_key[fact.key].append(fact)
    return facts_by_key


# ---------------------------------------------------------------------------------- questions


def graph_answers(
    graph: ShownGraph, matched: Matched, questions: Sequence[WorldQuestion]
) -> list[TrueObjects]:
    """Return the graph's answers, in true identities."""
    by_slot: dict[TrueSlot, list[tuple[Fact, TrueObject]]] = defaultdict(list)
    for fact, name in _states(graph.facts):
        relation = name.relation if name else fact.relation
        if fact.target is None:
            by_slot[fact.source, relation].append((fact, fact.value or "?"))
            continue
        ends = [(fact.source, fact.target), (fact.target, fact.source)]
        if name is None or not RELATIONS[relation].symmetric:
            ends = ends[1:] if name is not None and name.reversed else ends[:1]
        for subject, target in ends:
            by_slot[subject, relation].append((fact, matched.true_of.get(target, f"?{target}")))
    answers = []
    for question in questions:
        subject, relation = question.slot
        facts = by_slot.get((matched.best.get(subject, ""), relation), ())
        answers.append(frozenset(target for fact, target in facts if fact.holds_at(question.at)))
    return answers


def accuracy(right: Sequence[TrueObjects], answers: Sequence[TrueObjects]) -> float:
    """Return the share of questions with the whole right answer."""
    return _share(sum(a == b for a, b in zip(right, answers, strict=True)), len(right))


def note_differences(
    name: str,
    questions: Sequence[WorldQuestion],
    right: Sequence[TrueObjects],
    answers: Sequence[TrueObjects],
    scores: Scores,
) -> None:
    """Note wrong answers, for people who look for a cause."""
    for question, expected, answer in zip(questions, right, answers, strict=True):
        if expected != answer:
            should, is_ = sorted(map(str, expected)), sorted(map(str, answer))
            _fault(
                scores, f"{name} {question.slot} at {times.show(question.at)}: should be {should}, is {is_}"
            )


def stale(
    facts: Sequence[TrueFact], questions: Sequence[WorldQuestion], answers: Sequence[TrueObjects]
) -> float:
    """Return the share of questions about single-valued slots whose answer holds an object that has ended."""
    past: dict[TrueSlot, set[TrueObject]] = defaultdict(set)
    for fact in facts:
        past[fact.key[:2]].add(fact.key[2])
    true = true_answers(facts, questions)
    single = [
        bool((answer - right) & past[question.slot])
        for question, right, answer in zip(questions, true, answers, strict=True)
        if RELATIONS[question.slot[1]].shape == "single"
    ]
    return _share(sum(single), len(single)) if single else 0.0


def _fault(scores: Scores, line: str) -> None:
    if len(scores.faults) < 20:
        scores.faults.append(line)


def _description(fact: TrueFact | Fact | None) -> str:
    if fact is None:
        return "nothing"
    words = (
        fact.key
        if isinstance(fact, TrueFact)
        else (fact.source, fact.relation, fact.target or fact.value, fact.text)
    )
    return f"{words} {fact.valid_at} - {fact.invalid_at}"
