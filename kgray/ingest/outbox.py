"""The queue of writes of a run that are decided and not yet durable, and their way to the store in batches.

The writes of a group are sent in the order of their posting, batch after batch. Batches of different groups
may run at the same time, in as many lanes as the store has, if enough writes wait. A write that is posted
while batches run waits for a later batch: the slower the store, the more writes share a transaction. While
the run expects more writes, a batch that is not full waits for them for a short time.

Extractions and answers are posted before the commits that use them, so the store never has a commit without
its journal. A write that is lost with the process was not acknowledged: a later run decides it again (R21).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from kgray.domain.records import Episode
from kgray.errors import Cost, KgrayError, is_groups_own
from kgray.ingest import changes
from kgray.ports import Answer, RowChanges
from kgray.ports.ingest import Writer
from kgray.schema import kinds

_ANSWERS = 4096  # the number of requests whose answers stay in memory, the latest
_LONG_S = 2.0  # the maximum time of a batch: appends to its groups wait for it
_MIN_SHARE, _MAX_SHARE = 0.25, 4.0  # bounds of a batch's size, as shares of the size that the store proposes
_PAYS = 0.95  # twice the size pays if each write then takes at most this share of its time
OnDurable = Callable[[], None]


class BatchSize:
    """The size of a batch: larger while that makes each write cheaper, smaller if a batch takes too long."""

    def __init__(self, proposed: int) -> None:
        self.most = self._proposed = proposed
        self._bounds = max(1, round(_MIN_SHARE * proposed)), round(_MAX_SHARE * proposed)
        self._each: dict[int, float] = {}  # size -> seconds a write, of full batches, the latest count most

    @property
    def full(self) -> int:
        """The number of writes that are worth a transaction beside another transaction."""
        return min(self.most, self._proposed)

    def note(self, writes: int, seconds: float) -> None:
        """Note how long a batch took. Only a full batch is compared with batches of other sizes."""
        (smallest, largest), size = self._bounds, self.most
        if writes >= size:
            each = self._each[size] = (self._each.get(size, seconds / size) + seconds / size) / 2
            larger, smaller = self._each.get(2 * size, 0.0), self._each.get(size // 2, float("inf"))
            if seconds <= _LONG_S / 2 and 2 * size <= largest and larger <= _PAYS * each:
                self.most = 2 * size
            elif _PAYS * smaller < each and size // 2 >= smallest:
                self.most = size // 2
        if seconds > _LONG_S:
            self.most = max(smallest, min(self.most, writes // 2))
            self._each.clear()  # the server has become slower: the measurements no longer apply


class _Post(NamedTuple):
    number: int  # in the order of posting
    due: float  # the end of its wait for other writes, on the loop's clock
    change: RowChanges
    on_durable: OnDurable | None


class Outbox:
    """The queue of posted writes, and the batches on their way."""

    def __init__(
        self,
        writer: Writer,
        *,
        most: int,
        lanes: int = 1,
        gather_s: float = 0.0,
        expects: Callable[[], bool] = lambda: False,
        took: Callable[[float], None] = lambda _: None,
    ) -> None:
        """Make an empty outbox.

        most        writes per batch at first
        lanes       batches at once
        gather_s    the maximum wait of a write for others
        expects     returns whether more writes may come while no caller waits for the queued writes
        took        called with the seconds of each batch
        """
        self._writer, self._lanes, self._took = writer, lanes, took
        self._gather_s, self._expects = gather_s, expects
        self._timer: asyncio.TimerHandle | None = None  # sends what has waited for `gather_s`
        self._size = BatchSize(most)
        self._number = 0
        self._waiting: deque[_Post] = deque()
        self._batches: dict[asyncio.Task[None], list[_Post]] = {}
        self._flushes: deque[tuple[int, asyncio.Future[None]]] = deque()  # the last number that each awaits
        self._error: BaseException | None = None  # of a failed batch
        # Ends when all is durable, None before the first write; with the error of a failed batch.
        self.sending: asyncio.Future[None] | None = None
        self.answers: dict[tuple[str, str], tuple[Answer, ...]] = {}
        # Group -> the keys of the requests that its journal answers, if they were read in this run; until
        # then `look_ups` counts the requests that were looked up.
        self.requests: dict[str, set[str]] = {}
        self.look_ups: Counter[str] = Counter()
        self._unwritten: Counter[str] = Counter()  # group -> writes that change its state and are not durable
        # Group -> (episode, or 0 for a correction; error): its writes are refused until the fault is cleared.
        self.faults: dict[str, tuple[int, Exception]] = {}

    def post(self, change: RowChanges, on_durable: OnDurable | None = None) -> None:
        """Queue a change; call `on_durable` when it is durable, and never if the group has a fault."""
        if change.group in self.faults:
            return
        loop = asyncio.get_running_loop()
        self._number += 1
        self._waiting.append(_Post(self._number, loop.time() + self._gather_s, change, on_durable))
        if change.recorded_at is not None:
            self._unwritten[change.group] += 1
        if change.erases:  # an erased episode may have used the group's answers (R25)
            self.forget_answers(change.group)
        if self.sending is None or _went_well(self.sending):
            self.sending = loop.create_future()
        if len(self._batches) < self._lanes:  # soon: writes that are posted at the same time share a batch
            loop.call_soon(self._send)

    def remember(self, group: str, key: str, answers: tuple[Answer, ...]) -> None:
        """Keep the answers of a request that were posted and may not be in the journal yet."""
        self.answers[group, key] = answers
        if group in self.requests:
            self.requests[group].add(key)
        if len(self.answers) > _ANSWERS:
            del self.answers[next(iter(self.answers))]

    def forget_answers(self, group: str) -> None:
        """Forget the answers of a group; the journal has those that are durable."""
        for key in [key for key in self.answers if key[0] == group]:
            del self.answers[key]

    def note_spent(self, episode: Episode, cost: Cost) -> None:
        """Post the cost of model calls without a usable reply: it counts as spent (R24)."""
        if cost.calls:
            self.post(changes.spent(episode, cost))

    @contextmanager
    def accounted(self, episode: Episode, report: Callable[[str, Cost], None]) -> Iterator[None]:
        """Note and report the cost of an error, or of a cancelled call, that leaves the block."""
        try:
            yield
        except (KgrayError, asyncio.CancelledError) as error:
            spent = getattr(error, "spent", Cost())
            report(type(error).__name__, spent)
            self.note_spent(episode, spent)
            raise

    @property
    def idle(self) -> bool:
        """Return whether all posted writes are durable."""
        return self.sending is None or _went_well(self.sending)

    def has_unwritten(self, group: str) -> bool:
        """Return whether a write that is not durable yet changes the group's state."""
        return self._unwritten[group] > 0

    def forget_requests(self) -> None:
        """Forget which requests the journals answer: another process may have written there."""
        self.requests.clear()
        self.look_ups.clear()

    async def flush(self) -> None:
        """Wait until all writes posted before this call are durable; raise the error of a failed batch."""
        if self.sending is None or self.idle:
            return
        durable = asyncio.get_running_loop().create_future()
        self._flushes.append((self._number, durable))
        self._send()
        await asyncio.wait((self.sending, durable), return_when=asyncio.FIRST_COMPLETED)
        if not durable.done() and not self.sending.cancelled():
            self.sending.result()

    def drop(self) -> None:
        """Drop the posted writes that were not sent; batches on their way may still arrive."""
        for task in self._batches:
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.sending is not None and not self.sending.cancel() and not self.sending.cancelled():
            self.sending.exception()
        self.sending = self._error = None
        for collection in (self._batches, self._waiting, self._flushes, self._unwritten, self.faults):
            collection.clear()
        self.answers.clear()
        self.forget_requests()

    def _send(self) -> None:
        """Begin a batch in each free lane, of groups without a write on its way."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # After a failed batch no batch is sent: the store would have it without the writes before it.
        while self._error is None and len(self._batches) < self._lanes and (batch := self._next()):
            task = asyncio.create_task(self._carry(batch))
            self._batches[task] = batch
            task.add_done_callback(self._end_batch)

    def _next(self) -> list[_Post]:
        """Take the next batch; return [] if it is empty or waits for further writes."""
        busy = {post.change.group for batch in self._batches.values() for post in batch}
        batch, passed = list[_Post](), list[_Post]()
        for post in self._waiting:
            (passed if post.change.group in busy else batch).append(post)
            if len(batch) == self._size.most:
                break
        if len(batch) < self._size.full:
            if self._batches:  # two halves side by side cost a server more than one after the other
                return []
            loop = asyncio.get_running_loop()
            if batch and batch[0].due > loop.time() and not self._flushes and self._expects():
                self._timer = loop.call_at(batch[0].due, self._send)
                return []
        for _ in range(len(batch) + len(passed)):
            self._waiting.popleft()
        self._waiting.extendleft(reversed(passed))
        return batch

    async def _carry(self, batch: Sequence[_Post]) -> None:
        """Write a batch; then call `on_durable` of each write that is durable."""
        started = time.monotonic()
        written = [post.change for post in batch]
        refused = await self._write(written)
        seconds = time.monotonic() - started
        self._size.note(len(batch), seconds)
        self._took(seconds)
        self._unwritten -= Counter(change.group for change in written if change.recorded_at is not None)
        for _, _, change, on_durable in batch:
            if on_durable is not None and change.group not in refused:
                on_durable()

    def _end_batch(self, task: asyncio.Task[None]) -> None:
        """Free the lane of a batch, use it, and wake the callers whose writes are durable now."""
        error = None if task.cancelled() else task.exception()
        if self._batches.pop(task, None) is None or self.sending is None or task.cancelled():
            return  # `drop` has forgotten it
        self._error = self._error or error
        self._send()
        if self._error is not None:
            if not self._batches and not self.sending.done():  # the other batches have ended too
                self.sending.set_exception(self._error)
            return
        parts = [*self._batches.values(), self._waiting]
        first = min((part[0].number for part in parts if part), default=None)  # that is not durable
        while self._flushes and (first is None or self._flushes[0][0] < first):
            _, durable = self._flushes.popleft()
            if not durable.done():
                durable.set_result(None)
        if first is None:
            self.sending.set_result(None)

    async def _write(self, written: Sequence[RowChanges]) -> set[str]:
        """Write a batch. If the store refuses it, write each group's part by itself, so that others go on.

        Return the groups without a written part.
        """
        refused: set[str] = set()
        try:
            await self._writer.write(written)
            return refused
        except Exception as error:
            if not is_groups_own(error):
                raise
        for group in dict.fromkeys(change.group for change in written):
            group_changes = [change for change in written if change.group == group]
            try:
                await self._writer.write(group_changes)
            except Exception as error:
                if not is_groups_own(error):
                    raise
                refused.add(group)
                self.faults[group] = (
                    group_changes[0].sequence if group_changes[0].ledger is kinds.EPISODES else 0,
                    error,
                )
                self._waiting = deque(post for post in self._waiting if post.change.group != group)
                del self._unwritten[group]
        return refused


def _went_well(sending: asyncio.Future[None]) -> bool:
    return sending.done() and not sending.cancelled() and sending.exception() is None
