"""The rules R6-R12 of docs/semantics.md, sentence by sentence, with no thought of cost: O(n^2) and worse.

It shares nothing with kgray.timeline but the values. Every question is answered by looking at all
evidence and all spans.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kgray.timeline import Claim

BEFORE_ALL = -math.inf
Source = tuple[int, int, int]
Row = tuple[str, Source, str, float, float, Source | None, tuple[Source, ...]]


@dataclass
class _Span:
    statement: str
    opened: Claim
    point: str
    start: float
    end: float | None = None
    ended: Claim | None = None
    cut: bool = False
    support: list[Claim] = field(default_factory=list)

    @property
    def is_open(self) -> bool:
        return self.end is None

    def has_length(self, instant: float) -> bool:
        return self.start < (instant if self.end is None else self.end)


def _start(claim: Claim) -> float:
    return BEFORE_ALL if claim.start is None else claim.start


def _order_of(claim: Claim) -> tuple[Source, bool, str]:
    """R6: an end of several variants comes first for its recorded variant."""
    return claim.said, claim.other_variant, claim.statement


def _inferred(claim: Claim) -> bool:
    return claim.start is not None and (claim.inferred or claim.start == claim.said[0])


class Oracle:
    """Derive the spans of all statements together; `are_rivals` is called for each pair."""

    def __init__(self, evidence: Sequence[Claim], are_rivals: Callable[[str, str], bool]) -> None:
        self.rivals = lambda a, b: a != b and are_rivals(a, b)
        self.spans: list[_Span] = []
        # R6: a denial cancels all earlier evidence of its statement.
        self.evidence = [
            claim
            for claim in evidence
            if claim.kind != "denied"
            and not any(
                d.kind == "denied" and d.statement == claim.statement and claim.said < d.said
                for d in evidence
            )
        ]
        for instant, kind, claim in self._points():
            self._expire(instant)
            {"end": self._end, "start": self._begin, "confirmation": self._begin}[kind](instant, kind, claim)
        self._expire(math.inf)

    def rows(self) -> set[Row]:
        """Return each span as (statement, opener, point, start, end, cause of the end, support)."""
        return {
            (
                s.statement,
                s.opened.said,
                s.point,
                s.start,
                math.inf if s.end is None else s.end,
                s.ended.said if s.ended else None,
                tuple(sorted({c.said for c in s.support})),
            )
            for s in self.spans
        }

    def _points(self) -> list[tuple[float, str, Claim]]:
        """R7."""
        result: list[tuple[float, int, Source, bool, str, str, Claim]] = []
        for claim in self.evidence:
            if claim.kind == "ended":
                assert claim.end is not None
                own_claims = [
                    c
                    for c in self.evidence
                    if c.kind == "holds" and c.statement == claim.statement and _start(c) == claim.end
                ]
                late = any(c.said < claim.said for c in own_claims)
                result.append((claim.end, 2 if late else 0, *_order_of(claim), "end", claim))
                continue
            result.append((_start(claim), 2, *_order_of(claim), "start", claim))
            if (
                claim.kind == "holds"
                and not _inferred(claim)
                and _start(claim) < claim.said[0]
                and claim.end is None
            ):
                result.append((claim.said[0], 1, *_order_of(claim), "confirmation", claim))
        result.sort(key=lambda row: row[:5])
        return [(row[0], row[5], row[6]) for row in result]

    def _last(self, statement: str) -> _Span | None:
        own_spans = [span for span in self.spans if span.statement == statement]
        return own_spans[-1] if own_spans else None

    def _open(self, statement: str) -> _Span | None:
        last = self._last(statement)
        return last if last is not None and last.is_open else None

    def _of_rivals(self, statement: str) -> list[_Span]:
        return [span for span in self.spans if self.rivals(span.statement, statement)]

    def _stated(self, span: _Span) -> Claim | None:
        """R9: the supporter whose stated end counts."""
        stating = [c for c in span.support if c.kind == "holds" and c.end is not None]
        if not stating:
            return None
        last = max(stating, key=lambda c: c.said)
        assert last.end is not None
        lifted = any(
            c.kind == "holds" and c.end is None and c.said > last.said and c.said[0] > last.end
            for c in span.support
        )
        return None if lifted else last

    def _expire(self, instant: float) -> None:
        for span in self.spans:
            stated = self._stated(span) if span.is_open else None
            if stated is not None and stated.end is not None and stated.end <= instant:
                span.end, span.ended = max(stated.end, span.start), stated

    def _finish(self, span: _Span, at: float, claim: Claim, *, cut: bool = False) -> None:
        span.end, span.ended, span.cut = at, claim, cut
        if span.start == span.end == BEFORE_ALL:
            self.spans.remove(span)  # R12

    def _end(self, t: float, _: str, claim: Claim) -> None:
        """R8, and R6 for an end that was recorded with another variant."""
        last_span = self._last(claim.statement)
        ends = (
            last_span is not None
            and last_span.is_open
            and not any(
                c.kind == "holds"
                and c.statement == claim.statement
                and c.said > claim.said
                and _start(c) < t
                and (c.end > t if c.end is not None else c.said[0] > t)
                for c in self.evidence
            )
        )
        if claim.other_variant and not ends:
            return
        if last_span is not None:
            last_span.support.append(claim)
            if ends:
                self._finish(last_span, t, claim)
            return
        rivals = [span for span in self._of_rivals(claim.statement) if span.has_length(t)]
        first = min(rivals, key=lambda span: (span.start, span.opened.said), default=None)
        span = _Span(claim.statement, claim, "end", BEFORE_ALL, t, claim, support=[claim])
        if first is not None and first.start == BEFORE_ALL:
            if any(rival.is_open for rival in self._of_rivals(claim.statement)):
                span.start = t
            else:
                span.start = max(rival.end for rival in rivals if rival.end is not None)
        elif first is not None and first.start < t:
            span.end, span.ended = first.start, first.opened
        self.spans.append(span)

    def _knew_better(self, t: float, claim: Claim) -> Claim | None:
        """R10."""
        later = [c for c in self.evidence if c.said > claim.said]
        result = [
            c
            for c in later
            if c.kind == "holds"
            and self.rivals(c.statement, claim.statement)
            and _start(c) <= t
            and (c.end is None or c.end > t)
            and not any(
                e.kind == "ended"
                and e.statement == c.statement
                and e.end is not None
                and _start(c) < e.end <= t
                and e.said > c.said
                for e in self.evidence
            )
        ]
        result += [
            c
            for c in later
            if c.kind == "ended" and c.statement == claim.statement and c.end is not None and c.end <= t
        ]
        return max(result, key=lambda c: c.said, default=None)

    def _begin(self, t: float, kind: str, claim: Claim) -> None:
        """R9-R11."""
        open_span = self._open(claim.statement)
        if open_span is not None:
            open_span.support.append(claim)
            self._expire(t)
            return
        last = self._last(claim.statement)
        better = self._knew_better(t, claim) if kind == "confirmation" or _inferred(claim) else None
        if better is not None:
            if last is not None:
                last.support.append(claim)
            else:
                self.spans.append(_Span(claim.statement, claim, kind, t, t, better, support=[claim]))
            return
        rivals = self._of_rivals(claim.statement)
        opens = t
        if kind == "confirmation" and last is not None and last.cut and not any(r.is_open for r in rivals):
            assert last.end is not None
            ends = [r.end for r in rivals if r.end is not None and r.start < r.end and last.end <= r.end <= t]
            opens = max(ends, default=last.end)
        for rival in rivals:
            if rival.is_open:
                self._finish(rival, opens, claim, cut=True)
        self.spans.append(_Span(claim.statement, claim, kind, opens, support=[claim]))
        self._expire(t)
