"""`python -m bench reading`: a real model reads labelled messages, through kgray and with a plain prompt."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.engine_reader import EngineCost, EngineReader, EngineReading
from bench.labelled import Conversation, LabelledFact, LabelledMessage
from bench.plain_reader import PlainReader, PlainReading
from bench.reading_scores import (
    Counts,
    Details,
    Ends,
    Identities,
    Interval,
    Pairing,
    ReadFact,
    bootstrap,
    compared_details,
    ends_in_graph,
    paired,
)
from bench.tables import aligned

ENGINE, PLAIN = "kgray", "plain prompt"


@dataclass(slots=True)
class ReaderScores:
    """Sums of one reader over messages.

    repeated_calls: late extractions that were sent again; the tokens are those of the other calls
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


def run(
    conversations: Sequence[Conversation],
    *,
    base_url: str,
    model: str,
    api_key: str | None,
    pipeline: Mapping[str, str],
    progress: Callable[[str], None] = lambda _: None,
) -> list[ConversationReading]:
    """Read every message twice, in turns: with kgray and with the plain prompt. Raises KgrayError.

    Which reader goes first changes from message to message, so that both meet the same load.
    """
    plain = PlainReader(base_url, model, api_key)
    total, number = sum(len(item.messages) for item in conversations), 0
    readings = []
    with (
        tempfile.TemporaryDirectory(prefix="kgray-bench-") as folder,
        closing(EngineReader(Path(folder), base_url, model, pipeline)) as engine,
    ):
        for conversation in conversations:
            messages = []
            for index, message in enumerate(conversation.messages):
                previous = conversation.messages[:index]
                if number % 2:
                    read = plain.read(message, previous)
                    cost = engine.add(conversation.id, message)
                else:
                    cost = engine.add(conversation.id, message)
                    read = plain.read(message, previous)
                messages.append(MessageReading(message=message, cost=cost, plain=read))
                number += 1
                seconds = f"kgray {cost.seconds:.1f} s, plain {read.seconds:.1f} s"
                progress(f"{number}/{total} {message.id}: {seconds}")
            result = engine.result(conversation)
            readings.append(ConversationReading(conversation=conversation, messages=messages, engine=result))
    return readings


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


_COLUMNS = (
    ("part", "part", "s"),
    ("reader", "reader", "s"),
    ("facts", "facts", "d"),
    ("precision", "P", ".3f"),
    ("recall", "R", ".3f"),
    ("f1", "F1", ".3f"),
    ("status_accuracy", "status", ".3f"),
    ("date_accuracy", "dates", ".3f"),
    ("false_dates", "false", "d"),
    ("extraction_calls", "extract", ".2f"),
    ("question_calls", "asked", ".2f"),
    ("calls", "calls", ".2f"),
    ("repeated_calls", "again", ".2f"),
    ("prompt_tokens_a_call", "prompt", ".0f"),
    ("completion_tokens_a_call", "reply", ".0f"),
    ("seconds", "s", ".1f"),
    ("failed", "failed", "d"),
)


class _Row:
    """One line of the table."""

    def __init__(self, part: str, reader: str, figures: Mapping[str, Any]) -> None:
        self.__dict__.update(figures, part=part, reader=reader)


def table(parts: Sequence[PartScores]) -> str:
    """Return the figures for people: shares of 1, calls and seconds a message, tokens a call."""
    rows = []
    for part in parts:
        rows += [
            _Row(part.part, ENGINE, part.engine.figures()),
            _Row(part.part, PLAIN, part.plain.figures()),
        ]
    lines = aligned(_COLUMNS, rows)
    for part in parts:
        lines += ["", *_sentences(part)]
    return "\n".join(lines)


def _sentences(part: PartScores) -> Iterator[str]:
    """Yield the lines on a part that stand below the table."""
    facts, bounds, ends = part.engine.counts, part.interval(), part.ends.counts
    pairs, aliases = part.identities.pairs, part.identities.aliases
    yield f"{part.part}: {part.engine.messages} messages, {facts.right + facts.missed} labelled facts"
    yield (
        f"  F1 of kgray - plain prompt: {bounds.mean:+.3f}, 90 % interval {bounds.low:+.3f} to "
        f"{bounds.high:+.3f} (bootstrap over messages)"
    )
    yield (
        f"  same entity, pairs of mentions: P {pairs.precision:.3f}, R {pairs.recall:.3f}, "
        f"F1 {pairs.f1:.3f} ({part.identities.matched} of {part.identities.mentions} mentions)"
    )
    yield (
        f"  the same, pairs of different names: P {aliases.precision:.3f}, R {aliases.recall:.3f}, "
        f"F1 {aliases.f1:.3f} ({aliases.right + aliases.missed} pairs)"
    )
    yield (
        f"  ended facts: recall {ends.recall:.3f} ({ends.right} of {ends.right + ends.missed}), "
        f"precision {ends.precision:.3f} ({ends.wrong} wrong, {part.ends.unknown} without a label)"
    )
