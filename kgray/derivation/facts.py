"""Spans to facts: both clocks on every fact (R2, R12)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kgray.derivation.statements import Statement
from kgray.graph import Fact
from kgray.records import Place, fact_id
from kgray.timeline import Claim, Span
from kgray.times import Instant


def fact_of(
    span: Span,
    statement: Statement,
    texts: Mapping[Place, tuple[str, str]],
    needed: Callable[[Claim, Claim], Instant],
) -> Fact:
    """Return the fact that a span is.

    texts: evidence place -> (its wording, its episode's id). needed(opened, ended): the record time
    of the last ruling, verdict or merge without which the second would not end the first (R17).
    """
    wording, _ = texts[span.opened.said[1:]]
    created = span.opened.recorded
    expired: Instant | None = None
    ended_by = None
    if span.ended is not None:
        expired = max(created, span.ended.recorded, needed(span.opened, span.ended))
        place = span.ended.said[1:]
        ended_by = (texts[place][1], place[1])
    return Fact(
        id=fact_id(statement.id, span.opened.said[1:], span.point),
        statement=statement.id,
        source=statement.subject,
        relation=statement.relation,
        target=statement.object,
        value=statement.value,
        text=wording,
        valid_at=span.start,
        invalid_at=span.end,
        created_at=created,
        expired_at=expired,
        episodes=tuple(sorted({texts[claim.said[1:]][1] for claim in span.support})),
        ended_by=ended_by,
    )
