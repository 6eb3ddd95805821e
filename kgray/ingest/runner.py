"""The windowed runner: many episodes in flight, the same graph as the plain loop's (R20).

Two lanes share the window. The live lane goes first: the backfill lane leaves it some places in the window
and at the model. Within a group the order of acceptance holds in both lanes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice

from kgray.domain import times
from kgray.domain.records import Episode, Operation
from kgray.errors import Outrun, Unavailable, is_groups_own
from kgray.ingest.calls import Parts, off_the_loop
from kgray.ingest.committer import Committer
from kgray.ingest.flight import BacklogEnd, RunContext
from kgray.ingest.window import GroupWindow
from kgray.ports.ingest import OnStep, Room, Stop, Totals, boundless
from kgray.schema import kinds
from kgray.storage import ledger
from kgray.storage.transactions import slot_of
from kgray.system import spans
from kgray.system.garbage import garbage_collected_rarely

GRACE_S = 5.0  # a stopping run commits entries in flight for this time
# One place in LIVE_SHARE, of the window and of the model, is reserved for the live lane; at the model only
# until LIVE_LATELY_S after the last live entry, because a reserved place is idle.
LIVE_SHARE = 16
LIVE_LATELY_S = 10.0
_LOOK_S = 0.25  # seconds between two looks for new entries and for a request to stop
_SOON_S = 0.05  # the same while the window has room and no known entry is left to take
_ALL_S = 30.0  # between two looks at all pending entries, not only at newly appended ones
# The quota of a group at its turn, in entries, so that a loaded state serves several episodes; but not more
# than a quarter of the window. Another group waits for this number of entries of each group before it.
A_TURN = 20
_LOG = logging.getLogger("kgray.runtime.holds")  # which an actor prints, and a command does not
Takes = Callable[[str], bool]  # whether this runner works on a group


class Runner:
    """Carries out pending entries of all groups: many episodes in flight, commits in each group's order."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.totals = Totals()  # of the current or the last run; of a service, from its start
        self.holds: dict[str, kinds.HoldRow] = {}  # groups on hold at the last look
        self.current: WindowedRun | None = None  # other threads read it once, as it may change at any time
        self.committer = Committer(
            parts, self.watch, expects=lambda: self.current is not None and self.current.in_flight > 0
        )

    async def run(
        self,
        *,
        groups: Collection[str] | None = None,
        stop: Stop = lambda: False,
        room: Room = boundless,
        on_step: OnStep = lambda *_: None,
    ) -> Totals:
        """Carry out pending entries until the log has no more, or `stop()` is true.

        groups  only these groups (None = all); an outage of another group does not end the run
        room    returns the maximum number of entries in flight; 1 or more until `stop()` is true

        Call it inside `store.writing()`, unless the parts have a writer, which then locks the store. Raises
        as the plain loop does; accepted entries stay pending for the next run (R24).
        """
        self.totals = Totals()
        takes: Takes = (lambda _: True) if groups is None else groups.__contains__
        try:
            await self._go(partial(WindowedRun, self, takes=takes, stop=stop, on_step=on_step, room=room))
        except Unavailable:
            if not stop():
                raise  # after a request to stop an outage is no error: the run does not wait for the model
        return self.totals

    async def serve(
        self, *, shard: int | None = None, stop: Stop = lambda: False, on_step: OnStep = lambda *_: None,
        is_watched: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        """Carry out pending and arriving entries until `stop()` is true; raises as `run` does.

        shard       only entries of groups of this shard (None = all)
        is_watched  returns whether another part looks at the log for this shard and calls `look`, so that an
                    idle run looks only now and then
        """
        new_run = partial(WindowedRun, self, stop=stop, on_step=on_step, shard=shard, serves=True)
        while not stop():
            await self._go(partial(new_run, is_watched=is_watched))

    async def leave(self, slots: Collection[int]) -> None:
        """Drop the entries in flight in these slots, write the decided ones, and forget their groups.

        Call it inside `Store.moving`, in the loop of the service. The entries stay pending.
        """
        if self.current is not None:
            await self.current.leave(slots)
        await self.committer.leave(slots)

    async def _go(self, new_run: Callable[[Parts], WindowedRun]) -> None:
        await self.committer.forget_stale()
        while True:
            run = self.current = new_run(self._parts)
            try:
                with garbage_collected_rarely():
                    await run.go()
                return
            except Outrun:
                self.committer.forget_all()  # another process wrote first: our batch was not written
            finally:
                await run.end()
                self.current = None

    def widen(self, streams: int) -> None:
        """Allow `streams` calls of models in flight, and at least twice as many episodes."""
        if streams != self._parts.streams:
            self._parts = replace(self._parts, streams=streams, window=max(self._parts.window, 2 * streams))
            if self.current is not None:
                self.current.widen(self._parts)

    def watch(self, stage: str, seconds: float, episode: Episode | None) -> None:
        """Count and report the seconds of a stage."""
        self.totals.seconds[stage] += seconds
        self._parts.watch(stage, seconds, episode)
        spans.ended(f"kgray {stage}", seconds, {"kgray.sequence": episode.sequence} if episode else {})


class WindowedRun:
    """One run: its windows and tasks. It ends without pending entries (not if it serves), or by `stop`."""

    def __init__(
        self, runner: Runner, parts: Parts, *, stop: Stop, on_step: OnStep, takes: Takes = lambda _: True,
        room: Room = boundless, shard: int | None = None, serves: bool = False,
        is_watched: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        self.parts, self.stop, self.committer, self.totals = parts, stop, runner.committer, runner.totals
        self.traffic = RunContext(
            parts, runner.committer, runner.totals, stop=stop, watch=runner.watch, on_end=self.ended
        )
        self._runner, self._takes, self._on_step, self._room = runner, takes, on_step, room
        self._shard, self._serves = shard, serves
        self._windows: dict[str, GroupWindow] = {}
        self._committing: set[GroupWindow] = set()  # they commit an entry, until its end is handled
        self._failed: deque[GroupWindow] = deque()  # a commit of them has failed or was cancelled
        self._wake = asyncio.Event()  # the loop must take its next step
        self._awaited: asyncio.Future[None] | None = None  # the outbox's writes that wake the loop
        self._withdrawn: dict[str, asyncio.Task[list[tuple[int, str]]]] = {}  # retractions and removals
        self._entries_taken = 0
        # Groups that may have entries to take, by lane (live, backfill); the group with the next turn first.
        self._lanes = OrderedDict[str, None](), OrderedDict[str, None]()
        self._used: dict[str, int] = {}  # the used part of the quota of a group that continues its turn
        self._leaves = 0  # handovers of slots: a read from before a handover may be of their groups
        self._mark = 0  # the log's position at the last look
        self._all_at = -_ALL_S  # the last look at all entries
        self._end = BacklogEnd(shard)
        self._live_at = -LIVE_LATELY_S
        self._looked_at = self._filled_at = -_LOOK_S
        self._is_watched, self._is_called = is_watched, True  # called: the log has news
        self._rested = -1  # number of entries taken when the run last had no work left
        self.traffic.broken.add_done_callback(self._step)

    def widen(self, parts: Parts) -> None:
        """Go on with another number of streams."""
        self.parts = parts
        self.traffic.widen(
            parts
        )  # a window with more entries than the former streams looks at its next commit

    @property
    def in_flight(self) -> int:
        """The number of entries in the windows."""
        return self.traffic.in_flight

    async def go(self) -> None:
        """Carry out the pending entries."""
        grace: float | None = None
        while grace is None or time.monotonic() < grace:
            await self._look()
            if grace is None and self.stop():
                grace = time.monotonic() + GRACE_S
            if grace is None:
                await self._fill()
            await self._hold_refused()
            await self._end_withdrawn()
            is_idle = not (self._committing or self._withdrawn)
            if is_idle and (grace is not None or self._rested != self._entries_taken):
                await self.committer.outbox.flush()
                if await self._hold_refused():
                    continue
                # Posted entries stay pending until they are durable, and may have hidden later ones.
                if await self._look(everything=True):
                    continue
                if grace is not None:
                    return
                if not await self._fill():
                    if not self._serves:
                        return
                    self._rested = self._entries_taken
            await self._wait(None if grace is None else max(0.0, grace - time.monotonic()))

    async def _wait(self, timeout_s: float | None) -> None:
        sending = self.committer.outbox.sending
        if sending is not None and sending.done():
            sending.result()
        elif sending is not None and sending is not self._awaited:
            self._awaited = sending
            sending.add_done_callback(self._step)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s or _LOOK_S):
                await self._wake.wait()
        self._wake.clear()
        if self.traffic.broken.done():
            self.traffic.broken.result()
        while self._failed:
            window = self._failed.popleft()
            self._committing.discard(window)
            head, window.head = window.head, None
            if head is None or self._windows.get(window.group) is not window:
                continue  # the group is on hold, or withdraws episodes
            fault = head.exception()
            if fault is None or not is_groups_own(fault):
                head.result()
            else:
                await self._hold(window.group, window.head_sequence, fault)

    def _step(self, _: object = None) -> None:
        self._wake.set()

    def _end_head(self, window: GroupWindow, head: asyncio.Task[None]) -> None:
        """Begin the next commit at once: the loop's reads of a server's store took a third of the time."""
        is_current = self._windows.get(window.group) is window
        if is_current and not head.cancelled() and head.exception() is None:
            self._committing.discard(window)
            window.head = None
            self._start(window)
        else:
            self._failed.append(window)
        self._wake.set()

    def _may_take(self, group: str) -> bool:
        hold = self._runner.holds.get(group)
        is_free = self._takes(group) and group not in self._withdrawn
        return is_free and (hold is None or hold.again_at <= times.now())

    async def _hold(self, group: str, sequence: int, fault: BaseException) -> None:
        """Put a group on hold for a while; the others go on (R24). sequence: 0 for a correction."""
        _LOG.info("group %s is held", group, exc_info=fault)
        if (window := self._windows.pop(group, None)) is not None:
            await window.discard()
        self._queue(group, live=False)
        self.committer.forgive(group)
        store, former = self.parts.store, self._runner.holds.get(group)
        hold = await off_the_loop(store, lambda: ledger.hold(store, group, sequence, fault, former))
        self._runner.holds[group] = hold

    async def _hold_refused(self) -> bool:
        """Hold the groups whose writes the store has refused; return whether there were any."""
        refused = list(self.committer.outbox.faults.items())
        for group, (sequence, fault) in refused:
            await self._hold(group, sequence, fault)
        return bool(refused)

    def look(self, *, everything: bool = False) -> None:
        """Look at the log at once (everything: also at older entries); call it in the service's loop."""
        self._is_called = True
        if everything:
            self._all_at = -_ALL_S
        self._wake.set()

    @property
    def rests(self) -> bool:
        """Return whether no entry is in flight, pending or held, as of the last look."""
        return not (any(self._lanes) or self._windows)

    def _pause_s(self) -> float:
        """Return the seconds between two looks without a call of `look`."""
        has_room = not any(self._lanes) and self._room_left() >= max(1, self._width() // 8)
        if has_room and self._windows:
            return _SOON_S
        return _ALL_S if self.rests and self._is_watched() else _LOOK_S

    async def _look(self, *, everything: bool = False) -> int:
        """Read the new entries, holds and requests for withdrawals, at a cost in proportion to their number.

        everything  look now, and also at entries that were appended before the last look

        Begin the requested retractions and removals; return the number of their groups (R27). They do not
        wait for pending entries. Entries in flight in their groups are dropped first, and taken again after
        them; other groups go on.
        """
        time_now, store, shard = time.monotonic(), self.parts.store, self._shard
        if not everything and not self._is_called and time_now - self._looked_at < self._pause_s():
            return 0
        self._is_called = False
        everything = everything or time_now - self._all_at >= _ALL_S
        mark = 0 if everything else self._mark  # the position of the last look
        ask, leaves = partial(store.newly_pending, mark, shard), self._leaves
        live_by_group, mark = await off_the_loop(store, ask, is_large=everything)
        if self._leaves != leaves:
            return 0
        self._mark = mark
        self._looked_at = time.monotonic()
        if everything:
            self._all_at = self._looked_at
        for group, live in live_by_group.items():
            self._queue(group, live=live)
        if any(self._lanes) or self._windows or self._runner.holds:
            self._runner.holds = await off_the_loop(store, lambda: ledger.held(store))
            in_memory = self.in_flight + self.traffic.posted
            await self._end.look(store, self._entries_taken, in_memory, 2 * self.parts.streams)
        count = len(self._withdrawn)
        if live_by_group or everything:  # a request for a withdrawal is an appended entry, too
            for group in await off_the_loop(store, partial(store.withdrawing, shard)):
                if self._leaves == leaves:
                    self._withdraw(group)
        return len(self._withdrawn) - count

    def _withdraw(self, group: str) -> None:
        """Begin the retractions and removals of a group, unless they are running."""

        async def withdraw(window: GroupWindow | None) -> list[tuple[int, str]]:
            if window is not None:
                await window.discard()
            return await self.committer.withdraw(group)

        hold = self._runner.holds.get(group)
        # A hold because of an episode does not block a removal.
        is_held_elsewhere = hold is not None and hold.sequence > 0 and self._takes(group)
        if group not in self._withdrawn and (self._may_take(group) or is_held_elsewhere):
            window = self._windows.pop(group, None)
            self._withdrawn[group] = self.traffic.spawn(withdraw(window))
            self._withdrawn[group].add_done_callback(self._step)
            if window is not None:
                self._queue(group, live=True)

    async def _end_withdrawn(self) -> None:
        for group, task in list(self._withdrawn.items()):
            if not task.done():
                continue
            del self._withdrawn[group]
            if (fault := task.exception()) is not None and is_groups_own(fault):
                await self._hold(group, 0, fault)
                continue
            for sequence, outcome in task.result():
                self.ended(group, sequence, outcome)

    def _start(self, window: GroupWindow) -> None:
        """Commit the window's next entry; drop an empty window when all its entries are durable."""
        if window.items:
            window.head = self.traffic.spawn(window.commit_head())
            self._committing.add(window)
            window.head.add_done_callback(partial(self._end_head, window))
        elif not window.posted:
            del self._windows[window.group]

    def ended(self, group: str, sequence: int, outcome: str) -> None:
        """Count an entry that is durable."""
        self.totals.count(outcome)
        if outcome == "committed":
            self.totals.last_commit = time.monotonic()
        if self._runner.holds.pop(group, None) is not None:
            ledger.release(self.parts.store, group)
        self._on_step(group, sequence, outcome)
        window = self._windows.get(group)
        if window is not None and not (window.items or window.posted or window.head):
            del self._windows[group]

    def _width(self) -> int:
        return min(self.parts.window, self._room())

    def _room_left(self) -> int:
        """Return the number of entries that may be taken; it shrinks while the writer is slow."""
        return self._width() - max(self.in_flight, self.traffic.posted)

    async def _fill(self) -> int:
        """Take entries into the window until it is full or no known entry is left; return their number.

        Groups with live entries go first, then by turn. It waits until a quarter of the window is free, or
        _LOOK_S seconds: once per commit would ask the store too often.
        """
        room, width, time_now = self._room_left(), self._width(), time.monotonic()
        if room <= 0 or (room < max(1, width // 4) and time_now - self._filled_at < _LOOK_S):
            return 0
        self._filled_at = time_now
        if self._lanes[False]:
            self._live_at = time_now
        free = {False: room, True: room - width // LIVE_SHARE}  # places by lane: bulk or not
        total, blocked = 0, len(self._runner.holds) + len(self._withdrawn)
        for bulk, lane in enumerate(self._lanes):
            share = max(1, min(A_TURN, width // 4), -(-free[bool(bulk)] // max(1, len(lane))))
            # A take of a group that may be taken uses at least one place, or ends the group's turn.
            for group in list(islice(lane, max(0, free[bool(bulk)]) + blocked)):
                if free[bool(bulk)] <= 0:
                    break
                if group in lane and self._may_take(group):  # the group's slot may have left during the loop
                    total += await self._take(group, share, free, live=not bulk)
        is_live = time_now - self._live_at < LIVE_LATELY_S
        self.traffic.gate.hold_back(self.parts.streams // LIVE_SHARE if is_live else 0)
        return total

    def _queue(self, group: str, *, live: bool) -> None:
        """Queue a group for its turn in a lane, behind the others; a waiting group keeps its place."""
        if self._takes(group):
            self._lanes[live].pop(group, None)
            self._lanes[not live].setdefault(group)

    async def _take(self, group: str, share: int, free: dict[bool, int], *, live: bool) -> int:
        """Take the rest of a group's quota of `share` entries; return their number. Lowers `free`."""
        current, store = self._windows.get(group), self.parts.store
        last = 0 if current is None else current.last
        limit = min(free[False], share - self._used.get(group, 0))
        most_before = self.parts.pipeline.previous_episodes

        def next_entries() -> tuple[list[Episode | Operation], dict[int, list[Episode]]]:
            # A single read of all contexts: separate reads took a third of the time on a server.
            entries = ledger.pending(store, group, limit, after=last)
            unread = [e for e in entries if isinstance(e, Episode) and e.state != "extracted"]
            return entries, ledger.previous(store, [e for e in unread if e.kind != "triples"], most_before)

        leaves = self._leaves
        entries, contexts = await off_the_loop(store, next_entries)
        if self._leaves != leaves:
            return 0  # a group that stayed keeps its place in the lane
        window = self._windows.get(group) or GroupWindow(group, self.traffic)
        count = 0
        for entry in entries:
            bulk = isinstance(entry, Episode) and entry.bulk
            withdraws = isinstance(entry, Operation) and entry.withdraws  # the next look carries it out
            if withdraws or window.ends_with_correction or free[bulk] <= 0:
                break
            if self.totals.first_claim is None:
                self.totals.first_claim = time.monotonic()
            self._windows[group] = window
            window.take(
                entry, self._entries_taken, tail=self._end.number, context=contexts.get(entry.sequence)
            )
            self._entries_taken += 1
            if isinstance(entry, Episode):
                self.parts.watch("taken", 0.0, entry)
            count += 1
            free[True] -= 1
            free[False] -= 1
        self._lanes[not live].pop(group, None)
        used = self._used.pop(group, 0) + count
        if count < len(entries) or count == limit:  # the log may have more
            self._queue(group, live=live)
            if 0 < used < share:
                self._used[group] = used
                self._lanes[not live].move_to_end(group, last=False)
        if count and window.head is None:
            self._start(window)
        return count

    async def leave(self, slots: Collection[int]) -> None:
        """Drop the windows of the groups in these slots; see `Runner.leave`."""
        self._leaves += 1
        groups_in_use = {*self._windows, *self._lanes[False], *self._lanes[True], *self._withdrawn}
        groups = [group for group in groups_in_use if slot_of(group) in slots]
        for group in groups:
            self._used.pop(group, None)
            for lane in self._lanes:
                lane.pop(group, None)
        windows = [self._windows.pop(group) for group in groups if group in self._windows]
        await asyncio.gather(*(window.discard() for window in windows))
        if withdrawing := [self._withdrawn[group] for group in groups if group in self._withdrawn]:
            await asyncio.wait(withdrawing)

    async def end(self) -> None:
        """Cancel every task and send all posted writes; entries in flight stay pending."""
        tasks = list(self.traffic.tasks)
        for window in self._windows.values():
            tasks += [call for item in window.items.values() for call in item.calls.values()]
            window.items.clear()  # first: the end of a call would have its entry decided again
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.traffic.broken.done():
            self.traffic.broken.exception()
        else:
            self.traffic.broken.cancel()
        outbox = self.committer.outbox
        with suppress(Exception):  # the run has raised it already, or stops and waits only briefly
            async with asyncio.timeout(GRACE_S if self.stop() else None):
                await outbox.flush()
        if not outbox.idle:
            self.committer.forget_all()
