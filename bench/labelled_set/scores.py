"""The scores of both readers on a part of a labelled set, and every message as they read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.labelled_set.bootstrap import Interval, bootstrap
from bench.labelled_set.details import Details, compared_details
from bench.labelled_set.engine import EngineCost, EngineReading
from bench.labelled_set.facts import ReadFact
from bench.labelled_set.graphs import Ends, Identities, ends_in_graph
from bench.labelled_set.labels import Conversation, LabelledFact, LabelledMessage
from bench.labelled_set.pairing import Pairing, paired
from bench.labelled_set.plain import PlainReading
from bench.labelled_set.shares import Counts

ENGINE, PLAIN = "kgray", "plain prompt"


@dataclass(slots=True)
class ReaderScores:
    """Sums of one reader over messages.

    repeated_calls: late extractions that were sent again; the tokens are of the other calls
    """

    counts: Counts = field(default_factory=Counts)
    details: Details = field(default_factory=Details)
    messages: int = 0
    failed: int = 0  # messages without a usable reply
    extraction_calls: int = 0
    question_calls: int = 0
    repeated_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0

    def add(self, scored: Pairing, details: Details, *, seconds: float, failed: bool) -> None:
        """Add one message."""
        self.counts += scored.counts
        self.details += details
        self.messages += 1
        self.failed += failed
        self.seconds += seconds

    def figures(self) -> dict[str, Any]:
        """Return the figures of a report: shares of 1, calls and seconds a message, tokens a call."""
        calls, messages = self.extraction_calls + self.question_calls, max(1, self.messages)
        return {
            "messages": self.messages,
            "failed": self.failed,
            "facts": self.counts.right + self.counts.wrong,
            **asdict(self.counts),
            "precision": self.counts.precision,
            "recall": self.counts.recall,
            "f1": self.counts.f1,
            "status_accuracy": self.details.status_accuracy,
            "stated_dates": self.details.dates,
            "date_accuracy": self.details.date_accuracy,
            "false_dates": self.details.false_dates,
            "extraction_calls": self.extraction_calls / messages,
            "question_calls": self.question_calls / messages,
            "calls": calls / messages,
            "repeated_calls": self.repeated_calls / messages,
            "prompt_tokens_a_call": self.prompt_tokens / max(1, calls),
            "completion_tokens_a_call": self.completion_tokens / max(1, calls),
            "seconds": self.seconds / messages,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageReading:
    """One message as both readers read it."""

    message: LabelledMessage
    cost: EngineCost
    plain: PlainReading


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationReading:
    """One conversation as both readers read it."""

    conversation: Conversation
    messages: Sequence[MessageReading]
    engine: EngineReading


@dataclass(slots=True)
class PartScores:
    """Both readers on one part of the set."""

    part: str
    engine: ReaderScores = field(default_factory=ReaderScores)
    plain: ReaderScores = field(default_factory=ReaderScores)
    engine_counts: list[Counts] = field(default_factory=list)
    plain_counts: list[Counts] = field(default_factory=list)
    identities: Identities = field(default_factory=Identities)
    ends: Ends = field(default_factory=Ends)

    def take(self, reading: ConversationReading) -> list[dict[str, Any]]:
        """Add a conversation; return a row for each message, with labels and predictions."""
        engine = reading.engine
        rows = [self._take_message(message, engine) for message in reading.messages]
        self.identities += engine.identities
        self.ends += ends_in_graph(
            [label for item in reading.messages for label in item.message.ends],
            [label for item in reading.messages for label in item.message.facts],
            engine.graph,
            [fact for facts in engine.facts.values() for fact in facts],
        )
        return rows

    def _take_message(self, reading: MessageReading, engine: EngineReading) -> dict[str, Any]:
        message, cost, plain = reading.message, reading.cost, reading.plain
        facts, failed = engine.facts.get(message.id, ()), message.id not in engine.facts
        scored, details = _scored(message, facts)
        self.engine.add(scored, details, seconds=cost.seconds, failed=failed)
        self.engine.extraction_calls += cost.extraction.calls
        self.engine.question_calls += cost.questions.calls
        self.engine.repeated_calls += cost.repeated.calls
        self.engine.prompt_tokens += cost.extraction.prompt_tokens + cost.questions.prompt_tokens
        self.engine.completion_tokens += cost.extraction.completion_tokens + cost.questions.completion_tokens
        plain_scored, plain_details = _scored(message, plain.facts)
        self.plain.add(plain_scored, plain_details, seconds=plain.seconds, failed=not plain.complete)
        self.plain.extraction_calls += 1
        self.plain.prompt_tokens += plain.prompt_tokens
        self.plain.completion_tokens += plain.completion_tokens
        self.engine_counts.append(scored.counts)
        self.plain_counts.append(plain_scored.counts)
        return {
            "id": message.id,
            "text": message.text,
            "cost": {
                "extraction": cost.extraction._asdict(),
                "questions": cost.questions._asdict(),
                "repeated": cost.repeated._asdict(),
                "seconds": cost.seconds,
                "plain_seconds": plain.seconds,
            },
            ENGINE: _explained(message.facts, facts, scored),
            PLAIN: _explained(message.facts, plain.facts, plain_scored),
            "notes": list(engine.notes.get(message.id, ())),
            "fault": engine.faults.get(message.id, ""),
        }

    def interval(self) -> Interval:
        """Return the bootstrap of the difference in F1, kgray's minus the plain prompt's."""
        return bootstrap(self.engine_counts, self.plain_counts)

    def document(self) -> dict[str, Any]:
        """Return all figures."""
        pairs, aliases = self.identities.pairs, self.identities.aliases
        return {
            "part": self.part,
            ENGINE: self.engine.figures(),
            PLAIN: self.plain.figures(),
            "difference_f1": asdict(self.interval()),
            "identities": {
                "mentions": self.identities.mentions,
                "matched": self.identities.matched,
                "pairwise_precision": pairs.precision,
                "pairwise_recall": pairs.recall,
                "pairwise_f1": pairs.f1,
                "alias_pairs": aliases.right + aliases.missed,
                "alias_precision": aliases.precision,
                "alias_recall": aliases.recall,
                "alias_f1": aliases.f1,
            },
            "ends": {
                "labelled": self.ends.counts.right + self.ends.counts.missed,
                **asdict(self.ends.counts),
                "recall": self.ends.counts.recall,
                "precision": self.ends.counts.precision,
                "ended_without_label": self.ends.unknown,
            },
        }


def _scored(message: LabelledMessage, facts: Sequence[ReadFact]) -> tuple[Pairing, Details]:
    scored = paired(message.facts, facts, message.at)
    details = Details()
    for label, fact in scored.pairs:
        if not message.facts[label].optional:
            details += compared_details(message.facts[label], facts[fact], message.at)
    return scored, details


def _explained(
    labels: Sequence[LabelledFact], facts: Sequence[ReadFact], scored: Pairing
) -> dict[str, list[Any]]:
    """Return a reader's facts as right, optional and wrong, and the missed labels, for a person to read."""
    partner = {fact: label for label, fact in scored.pairs}
    met = set(partner.values())
    groups: dict[str, list[Any]] = {"right": [], "optional": [], "wrong": [], "missed": []}
    for index, fact in enumerate(facts):
        if index not in partner:
            groups["wrong"].append(asdict(fact))
        else:
            label = labels[partner[index]]
            stated = {"statuses": label.statuses, "start": label.start, "end": label.end}
            groups["optional" if label.optional else "right"].append({**asdict(fact), "label": stated})
    for index, label in enumerate(labels):
        if index not in met and not label.optional:
            subject, object_ = ([*end.entities, *end.values] for end in (label.subject, label.object))
            groups["missed"].append({"subject": subject, "object": object_, "cues": label.cues})
    return groups


def report(readings: Sequence[ConversationReading]) -> tuple[list[PartScores], list[dict[str, Any]]]:
    """Return the scores of each part and, where there are several, of all; and a row for each message."""
    parts: dict[str, PartScores] = {}
    both = PartScores("all")
    rows = []
    for reading in readings:
        part = reading.conversation.part
        rows += parts.setdefault(part, PartScores(part)).take(reading)
        both.take(reading)
    return [*parts.values(), *([both] if len(parts) > 1 else [])], rows
