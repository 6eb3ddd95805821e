"""Scores of a reader against labelled messages: facts, statuses, dates, identities, ends. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from bench.labelled import LabelledFact
from bench.spelling import has_cue, normal_name

RESAMPLES = 10_000
_FIRST_PERSON = frozenset("i me myself we us speaker yo ich je moi mich".split())


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFact:
    """A fact that a reader listed. start, end: ISO dates as the reader gave them, None = no date."""

    subject: str
    object: str
    relation: str
    text: str
    status: str
    start: str | None = None
    end: str | None = None


def end_name(name: str, speaker: str | None) -> str:
    """Return the name of a fact's end; a pronoun of the first person means the speaker."""
    return speaker if speaker and normal_name(name) in _FIRST_PERSON else name


def is_match(gold: LabelledFact, fact: ReadFact) -> bool:
    """Return whether a reader's fact has both ends of the label, in either order, and a cue."""
    straight = gold.subject.accepts(fact.subject) and gold.object.accepts(fact.object)
    exchanged = gold.subject.accepts(fact.object) and gold.object.accepts(fact.subject)
    return (straight or exchanged) and has_cue(gold.cues, fact.relation, fact.text)


@dataclass(frozen=True, slots=True)
class Counts:
    """Facts of one reader: right, wrongly listed, and missed. They add up."""

    right: int = 0
    wrong: int = 0
    missed: int = 0

    def __add__(self, summand: Counts) -> Counts:
        return Counts(self.right + summand.right, self.wrong + summand.wrong, self.missed + summand.missed)

    @property
    def precision(self) -> float:
        """Share of the listed facts that are right; 1 where none was listed."""
        return _share(self.right, self.right + self.wrong)

    @property
    def recall(self) -> float:
        """Share of the labelled facts that were listed; 1 where there is none."""
        return _share(self.right, self.right + self.missed)

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        return _share(2 * self.right, 2 * self.right + self.wrong + self.missed)


def _share(part: int, total: int) -> float:
    return part / total if total else 1.0


@dataclass(frozen=True, slots=True)
class Pairing:
    """How one message's facts were matched: (index of the labelled fact, index of the reader's fact)."""

    pairs: tuple[tuple[int, int], ...]
    counts: Counts


def paired(gold: Sequence[LabelledFact], facts: Sequence[ReadFact], at: str) -> Pairing:
    """Match labelled facts with a reader's facts, one to one, with as many required facts as possible.

    An optional fact that is matched counts neither as right nor as wrong. Among several candidates, a
    fact with the right status and dates goes first. at: the message's time, in ISO form.
    """
    partners: dict[int, int] = {}  # index of the reader's fact -> index of the labelled fact

    def candidates(index: int) -> list[int]:
        label = gold[index]
        matching = [i for i, fact in enumerate(facts) if is_match(label, fact)]
        return sorted(matching, key=lambda i: (-_agreement(label, facts[i], at), i))

    def place(index: int, tried: set[int]) -> bool:
        """Give a labelled fact a partner; move the partners of others where that is needed."""
        for candidate in candidates(index):
            if candidate not in tried:
                tried.add(candidate)
                if candidate not in partners or place(partners[candidate], tried):
                    partners[candidate] = index
                    return True
        return False

    order = sorted(range(len(gold)), key=lambda index: gold[index].optional)
    for index in order:
        place(index, set())
    required = sum(not gold[index].optional for index in partners.values())
    total = sum(not label.optional for label in gold)
    counts = Counts(required, len(facts) - len(partners), total - required)
    return Pairing(tuple(sorted((label, fact) for fact, label in partners.items())), counts)


def _agreement(label: LabelledFact, fact: ReadFact, at: str) -> int:
    details = compared_details(label, fact, at)
    return 2 * details.status_right + details.dates_right - details.false_dates


@dataclass(frozen=True, slots=True)
class Details:
    """Status and dates of matched facts; they add up."""

    facts: int = 0
    status_right: int = 0
    dates: int = 0  # that the texts state
    dates_right: int = 0
    false_dates: int = 0  # that a reader gave although the texts state none

    def __add__(self, summand: Details) -> Details:
        return Details(
            self.facts + summand.facts,
            self.status_right + summand.status_right,
            self.dates + summand.dates,
            self.dates_right + summand.dates_right,
            self.false_dates + summand.false_dates,
        )

    @property
    def status_accuracy(self) -> float:
        """Share of the matched facts with an accepted status."""
        return _share(self.status_right, self.facts)

    @property
    def date_accuracy(self) -> float:
        """Share of the stated dates that the reader gave at the stated precision or finer."""
        return _share(self.dates_right, self.dates)


def compared_details(label: LabelledFact, fact: ReadFact, at: str) -> Details:
    """Compare status and dates of one matched fact.

    The day of the message counts as no date, unless the label has it: engines need a date where the text
    states none. A state whose end lies before the message counts as ended. Where the label accepts
    `event` or `ended`, its date may be in either field: events have one date only.
    """
    free = not {"event", "ended"}.isdisjoint(label.statuses)
    dates = {name: date for name, date in (("start", fact.start), ("end", fact.end)) if date}
    if "start" in dates and dates.get("end") == dates["start"] and label.end is None:
        del dates["end"]
    stated = {name: date for name, date in (("start", label.start), ("end", label.end)) if date}
    right = 0
    used: set[str] = set()
    for name, date in stated.items():
        fields = [name, *(field for field in ("start", "end") if free and field != name)]
        for field in fields:
            if field not in used and dates.get(field, "").startswith(date):
                right += 1
                used.add(field)
                break
    false = sum(
        name not in used and name not in stated and date[:10] != at[:10] for name, date in dates.items()
    )
    status = fact.status
    if status == "current" and fact.end and fact.end[:10] < at[: len(fact.end[:10])]:
        status = "ended"
    accepted = {"denied", "ended"} if label.statuses == ("denied",) else set(label.statuses)
    return Details(1, int(status in accepted), len(stated), right, false)


@dataclass(frozen=True, slots=True)
class Interval:
    """Mean difference of two F1 over resamples, with the bounds of its 90 % interval."""

    mean: float
    low: float
    high: float


def bootstrap(
    first: Sequence[Counts], second: Sequence[Counts], *, resamples: int = RESAMPLES, seed: int = 1
) -> Interval:
    """Return F1(first) - F1(second) over messages that are drawn with replacement, in pairs.

    first, second: counts of the same messages in the same order, at least one. Deterministic for a seed.
    """
    if len(first) != len(second) or not first:
        raise ValueError("both readers need counts of the same messages, at least one")
    drawn = np.random.default_rng(seed).integers(0, len(first), (resamples, len(first)))
    difference = _f1_of(first, drawn) - _f1_of(second, drawn)
    low, high = np.quantile(difference, (0.05, 0.95))
    return Interval(float(difference.mean()), float(low), float(high))


def _f1_of(counts: Sequence[Counts], drawn: np.ndarray) -> np.ndarray:
    """Return (resamples,): the F1 of each row of drawn messages."""
    right = np.array([count.right for count in counts])[drawn].sum(axis=1)
    errors = np.array([count.wrong + count.missed for count in counts])[drawn].sum(axis=1)
    total = 2 * right + errors
    return np.where(total > 0, 2 * right / np.maximum(total, 1), 1.0)


# ----------------------------------------------------------------------------- identities, ends


@dataclass(frozen=True, slots=True)
class ResolvedMention:
    """A mention that labels and graph share.

    surface: normalised; expected: the labelled id; resolved: the graph's id
    """

    surface: str
    expected: str
    resolved: str


@dataclass(frozen=True, slots=True)
class Identities:
    """Pairs of mentions in the graph against the labels; `aliases` are the pairs of different names.

    mentions: number of labels; matched: number of labels that the graph has
    """

    pairs: Counts = Counts()
    aliases: Counts = Counts()
    mentions: int = 0
    matched: int = 0

    def __add__(self, summand: Identities) -> Identities:
        return Identities(
            self.pairs + summand.pairs,
            self.aliases + summand.aliases,
            self.mentions + summand.mentions,
            self.matched + summand.matched,
        )


def identities(mentions: Iterable[ResolvedMention], labelled: int, matched: int) -> Identities:
    """Return the pairs of one conversation's mentions. labelled, matched: as the fields of `Identities`."""
    pairs = aliases = Counts()
    for first, second in combinations(mentions, 2):
        same, joined = first.expected == second.expected, first.resolved == second.resolved
        pair = Counts(int(same and joined), int(joined and not same), int(same and not joined))
        pairs += pair
        if first.surface != second.surface:
            aliases += pair
    return Identities(pairs, aliases, labelled, matched)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphFact:
    """A span of the graph at the end of a conversation, with every name of its ends.

    state: whether it still "holds", has "ended", or is an "event"
    """

    subject: tuple[str, ...]
    object: tuple[str, ...]
    relation: str
    text: str
    state: str


@dataclass(frozen=True, slots=True)
class Ends:
    """Labelled facts that no longer hold, against the graph.

    counts.wrong: spans that ended although the labelled fact holds; unknown: ended spans without a label
    """

    counts: Counts = Counts()
    unknown: int = 0

    def __add__(self, summand: Ends) -> Ends:
        return Ends(self.counts + summand.counts, self.unknown + summand.unknown)


def _in_graph(label: LabelledFact, fact: GraphFact) -> bool:
    """Return whether a span of the graph is the labelled fact, by any name of its ends."""
    return any(
        is_match(
            label,
            ReadFact(subject=subject, object=object_, relation=fact.relation, text=fact.text, status=""),
        )
        for subject in fact.subject
        for object_ in fact.object
    )


def ends_in_graph(
    ended: Sequence[LabelledFact],
    stated: Sequence[LabelledFact],
    graph: Sequence[GraphFact],
    read: Sequence[ReadFact],
) -> Ends:
    """Score the ends of one conversation.

    ended   labels of facts that no longer hold (`ending`)
    stated  all other labels; an ended span is wrong if it matches a label that is current
    read    facts that the engine extracted from the conversation

    An end is right if no matching span holds and a matching span has ended. A denied fact may be absent
    from the graph, if the engine had read it before.
    """
    right = 0
    for label in ended:
        states = {fact.state for fact in graph if _in_graph(label, fact)}
        was_read = any(fact.status == "current" and is_match(label, fact) for fact in read)
        right += "holds" not in states and ("ended" in states or (label.ending == "denied" and was_read))
    wrong = unknown = 0
    for fact in graph:
        if fact.state == "ended" and not any(_in_graph(label, fact) for label in ended):
            labels = [label for label in stated if _in_graph(label, fact)]
            unknown += not labels
            wrong += bool(labels) and all(label.statuses == ("current",) for label in labels)
    return Ends(Counts(right, wrong, len(ended) - right), unknown)
