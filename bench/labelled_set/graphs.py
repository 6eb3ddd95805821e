"""Scores of the graph that a reader made: which mentions are one entity, and which facts have ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from bench.labelled_set.facts import ReadFact, is_match
from bench.labelled_set.labels import LabelledFact
from bench.labelled_set.shares import Counts


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

    pairs: Counts = field(default_factory=Counts)
    aliases: Counts = field(default_factory=Counts)
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
        is_same, joined = first.expected == second.expected, first.resolved == second.resolved
        pair = Counts(int(is_same and joined), int(joined and not is_same), int(is_same and not joined))
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

    counts: Counts = field(default_factory=Counts)
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
