"""One entry of a group's window, and the stages of an episode, from its acceptance to its commit.

    stage       entered when                                   its work                 whose it is
    accepted    the window takes the episode from the log      waits for its turn       the window
    reading     its extraction begins                          `extract_episode`        steps, and a model
    asking      its extraction is there, questions are open    `resolve_node`           steps, and a model
    ready       nothing is open, on the state it was tried on  waits for earlier ones   the window
    committed   the change is in the group's state, posted     becomes durable          the committer
    failed      its own content is at fault (R24)              becomes durable          the committer

An episode that is ready may have to ask again: an earlier commit may differ from what was expected. Only an
episode that is ready on the true state is committed. The log alone knows what was accepted, and is durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from kgray.ingest.calls import EpisodeReading
from kgray.ingest.state import Decision, ReadEpisode
from kgray.ports import Answer, Embedding, Question
from kgray.records import Episode, Operation

Stage = Literal["accepted", "reading", "asking", "ready", "committed", "failed"]
STAGES_AFTER: dict[Stage, frozenset[Stage]] = {
    "accepted": frozenset({"reading"}),
    "reading": frozenset({"asking", "failed"}),
    "asking": frozenset({"asking", "ready", "failed"}),
    "ready": frozenset({"asking", "ready", "committed"}),
    "committed": frozenset(),
    "failed": frozenset(),
}

Asked = tuple[Question, ...]  # by an episode in one request
GivenAnswers = tuple[Answer, ...]
Asking = asyncio.Task[GivenAnswers]


@dataclass(slots=True, eq=False)
class InFlight:
    """One entry in flight; number: how many were taken before it, over all groups."""

    entry: Episode | Operation
    number: int
    read: asyncio.Future[ReadEpisode] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    # When its first call of the extractor began, on the monotonic clock.
    sent: asyncio.Future[float] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    context: Sequence[Episode] | None = None  # the previous episodes; None: not read yet
    reading: EpisodeReading | None = None  # of an episode whose extraction has begun
    preparing: asyncio.Task[None] | None = None  # extracts it and decides it ahead
    stage: Stage = "accepted"  # of an episode; a correction has no stages
    tried: bool = False  # decided ahead at least once, or never to be
    until: float = 0.0  # how long it waits for others: before its first try, then before it asks
    due: bool = False  # to be decided ahead: never tried, or what its last try read has changed
    vectors: dict[str, Embedding] = field(default_factory=dict)
    asked: dict[Asked, Asking] = field(default_factory=dict)  # the calls of requests
    used: set[Asked] = field(default_factory=set)  # those that the commit used
    spent: dict[Asked, int] = field(default_factory=dict)  # tokens
    deciding_s: float = 0.0  # of all tries

    def enter(self, stage: Stage) -> None:
        """Enter the next stage. Raises RuntimeError where it cannot follow the current one."""
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
        """Enter `reading`, unless an earlier call has; return the reading that was begun, if any."""
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
