"""The scores of readings as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.labelled_set.scores import ENGINE, PLAIN, PartScores
from bench.tables import aligned

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
    """Yield the lines about a part below the table."""
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
