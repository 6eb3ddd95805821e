"""The plain loop: one episode at a time is extracted, decided and committed. Other runners equal it (R20)."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from kgray.domain.records import Episode, Extraction, Operation
from kgray.errors import ContentError, Outrun
from kgray.graph.change import EpisodeChange
from kgray.ingest.calls import EpisodeReading, Parts, journaled, keep, patiently, settle, stored_extraction
from kgray.ingest.committer import Committer, statement_vectors
from kgray.ingest.decide import decide
from kgray.ingest.outbox import Outbox
from kgray.ingest.state import Answers, Decision, GroupState, ReadEpisode
from kgray.ports import Answer, QuestionRequest
from kgray.ports.ingest import OnStep, Stop, Totals, embedded
from kgray.storage.ledger import pending, pending_groups

_CLAIM = 64  # entries read from the log at a time


class Loop:
    """Carries out pending entries in each group's order; the groups' states stay in memory."""

    def __init__(self, parts: Parts) -> None:
        """Start with no group in memory."""
        self._parts = parts
        self.totals = Totals()
        self.committer = Committer(parts, self._watch)

    async def run(
        self,
        *,
        groups: Collection[str] | None = None,
        stop: Stop = lambda: False,
        on_step: OnStep = lambda *_: None,
    ) -> Totals:
        """Carry out everything pending until nothing is, or `stop()` is true.

        Call it inside `store.writing()`. groups: only these (None = all); an outage that another group
        meets does not end the run. Raises Unavailable where the model stays unavailable for
        `patience_s`; accepted entries stay pending for the next run (R24).
        """
        totals = self.totals = Totals()
        await self.committer.forget_stale()
        for group in list(self.committer.outbox.faults):  # of the run before
            self.committer.forgive(group)
        while True:
            try:
                await self._carry_out(groups, stop, on_step)
                return totals
            except Outrun:
                continue  # another process wrote first: nothing of our batch was written, so read again
            finally:
                if not self.committer.outbox.idle:
                    self.committer.forget_all()

    async def _carry_out(self, groups: Collection[str] | None, stop: Stop, on_step: OnStep) -> None:
        store = self._parts.store
        while not stop() and (waiting := [g for g in pending_groups(store) if groups is None or g in groups]):
            for group in waiting:
                while not stop() and (entries := pending(store, group, _CLAIM)):
                    for entry in entries:
                        if stop():
                            return
                        if await self._withdraw(group, on_step):
                            break  # some of these entries may be gone
                        outcome = await self._step(entry, stop)
                        await self.committer.outbox.flush()
                        if group in self.committer.outbox.faults:  # the runner holds it, this loop ends
                            raise self.committer.outbox.faults[group][1]
                        self.totals.count(outcome)
                        on_step(group, entry.sequence, outcome)

    async def _withdraw(self, group: str, on_step: OnStep) -> bool:
        """Carry out the requested retractions and removals of the group; return whether there were any."""
        if group not in self._parts.store.withdrawing():
            return False
        for sequence, outcome in await self.committer.withdraw(group):
            self.totals.count(outcome)
            on_step(group, sequence, outcome)
        return True

    async def _step(self, entry: Episode | Operation, stop: Stop) -> str:
        if isinstance(entry, Operation):
            return await self.committer.correct(entry)
        parts, outbox = self._parts, self.committer.outbox
        try:
            reading = EpisodeReading(parts, entry)
            extraction = await patiently(lambda: extract(parts, outbox, entry, reading), parts, stop)
            read = ReadEpisode(episode=entry, extraction=extraction)
            change = await patiently(lambda: self._decided(read), parts, stop)
        except ContentError as error:
            await self.committer.fail(entry, error)
            return "failed"
        await self.committer.commit(change)
        return "committed"

    async def _decided(self, read: ReadEpisode) -> EpisodeChange:
        state = await self.committer.state(read.episode.group)
        return await decided_change(self._parts, read, state, self.committer.outbox)

    def _watch(self, stage: str, seconds: float, episode: Episode | None) -> None:
        self.totals.seconds[stage] += seconds
        self._parts.watch(stage, seconds, episode)


async def extract(parts: Parts, outbox: Outbox, episode: Episode, reading: EpisodeReading) -> Extraction:
    """Return the episode's extraction: the stored one, else the model's, which is posted to the journal.

    Raises Refused, InvalidAnswer or Unavailable as the extractor does.
    """
    if (stored := await stored_extraction(parts, episode)) is not None:
        return stored
    with outbox.accounted(episode, partial(parts.on_call, "extract")):
        return keep(outbox, episode, await reading.read())


async def decided_change(parts: Parts, read: ReadEpisode, state: GroupState, outbox: Outbox) -> EpisodeChange:
    """Return the changes of an episode in this state, with every question answered and journaled."""

    async def attempt(answers: Answers) -> Decision:
        return decide(read, state, answers, parts.rules)

    async def ask(request: QuestionRequest) -> tuple[Answer, ...]:
        return (await journaled(parts, outbox, request, parts.judge.key(request)))[0]

    embed = partial(embedded, parts.embedder)
    look_up = partial(statement_vectors, parts.store, state)
    return (await settle(read, parts, attempt=attempt, embed=embed, look_up=look_up, ask=ask))[0]
