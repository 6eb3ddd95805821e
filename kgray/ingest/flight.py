"""One entry of a group's window, and the stages of an episode, from its acceptance to its commit.

    stage       begins when                                    work                        worker
    accepted    the window takes the episode from the log      waits for its turn          the window
    reading     its extraction begins                          `extract_episode`           steps and a model
    asking      its extraction is complete, questions open     `resolve_node`              steps and a model
    ready       no question is open on the tried state         waits for earlier episodes  the window
    committed   the change is in the group's state, posted     becomes durable             the committer
    failed      its own content is at fault (R24)              becomes durable             the committer

A ready episode may have to ask again, if an earlier commit differs from its expected change. An episode is
only committed when it is ready on the true state. Accepted entries are durable in the log, and only there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from kgray.domain.records import Episode, Operation
from kgray.ingest.calls import EpisodeReading
from kgray.ingest.state import Decision, ReadEpisode
from kgray.ports import Answer, Embedding, Question

Stage = Literal["accepted", "reading", "asking", "ready", "committed", "failed"]
STAGES_AFTER: dict[Stage, frozenset[Stage]] = {
    "accepted": frozenset({"reading"}),
    "reading": frozenset({"asking", "failed"}),
    "asking": frozenset({"asking", "ready", "failed"}),
    "ready": frozenset({"asking", "ready", "committed"}),
    "committed": frozenset(),
    "failed": frozenset(),
}

RequestQuestions = tuple[Question, ...]  # of one request
GivenAnswers = tuple[Answer, ...]
Asking = asyncio.Task[GivenAnswers]


@dataclass(slots=True, eq=False)
class InFlight:
    """One entry in flight; number: the count of entries taken before it, over all groups."""

    entry: Episode | Operation
    number: int
    read: asyncio.Future[ReadEpisode] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    # The start of its first call of the extractor, on the monotonic clock.
    sent: asyncio.Future[float] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    context: Sequence[Episode] | None = None  # the previous episodes; None: not read yet
    reading: EpisodeReading | None = None  # of an episode whose extraction has begun
    preparing: asyncio.Task[None] | None = None  # extracts the episode and decides it ahead
    stage: Stage = "accepted"  # of an episode; a correction has no stages
    tried: bool = False  # decided ahead at least once, or excluded from that
    waits_until: float = 0.0  # end of its wait for others: before its first try, then before it asks
    due: bool = False  # must be decided ahead: it was not tried, or rows that its last try read have changed
    vectors: dict[str, Embedding] = field(default_factory=dict)
    calls: dict[RequestQuestions, Asking] = field(default_factory=dict)  # the calls of requests
    used: set[RequestQuestions] = field(default_factory=set)  # the requests that the commit used
    spent: dict[RequestQuestions, int] = field(default_factory=dict)  # tokens
    deciding_s: float = 0.0  # of all tries

    def enter(self, stage: Stage) -> None:
        """Enter the next stage. Raises RuntimeError if it cannot follow the current stage."""
        if stage not in STAGES_AFTER[self.stage]:
            raise RuntimeError(
                f"sequence {self.entry.sequence} of group {self.entry.group!r} is {self.stage}: "
                f"it cannot become {stage}"
            )
        self.stage = stage

    @property
    def is_decided(self) -> bool:
        """Return whether its change, or its failure, is in the group's state."""
        return not STAGES_AFTER[self.stage]

    def begin_reading(self) -> EpisodeReading | None:
        """Enter `reading`, unless an earlier call has; return the reading that has begun, if any."""
        if self.stage == "accepted":
            self.enter("reading")
        return self.reading

    def finish_reading(self, read: ReadEpisode) -> None:
        """Enter `asking`, with the extraction."""
        self.enter("asking")
        self.read.set_result(read)

    def note(self, decision: Decision) -> None:
        """Enter `ready` after a decision without open questions, else `asking`."""
        self.enter("asking" if decision.change is None or decision.questions else "ready")
