"""`Memory`, the public class: one store and the methods on it; those that read or write name their group.

Reads never ask a model. A correction first has what is pending ingested, then takes its place in the
group's order and waits until it is carried out, by this process or the one that ingests the folder.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace as replaced
from datetime import datetime
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from kgray import times
from kgray.derivation import dump as dumping
from kgray.derivation.stored import StoredView
from kgray.derivation.verify import differences
from kgray.derivation.view import View
from kgray.errors import InputError, NoSpace
from kgray.graph import Hit
from kgray.ingest.parts import Parts
from kgray.intake import FIELDS, Defaults, Refusal, draft_from
from kgray.ledger import FailedEpisode, failures, retry
from kgray.memory.accepting import Item, Submission, refusals_of
from kgray.memory.correcting import Corrections
from kgray.memory.ingesting import LocalIngest, last_sequences
from kgray.memory.reports import History, Report, derived, dumped, history_of, shown
from kgray.ports import Embedder, GroupCounts, SearchScope, Store, at_one_moment
from kgray.ports.ingest import Ingest, IngestOutcome, OnStep, OnWait, Queued, Stop, ignore, never, silent
from kgray.records import check_group
from kgray.search import SCOPES, Context, Filters, Method, Query, Reranker
from kgray.search import context as build_context
from kgray.search import search as find_hits
from kgray.times import Instant

if TYPE_CHECKING:
    from kgray.ingest.preview import Preview

When = str | int | float | datetime  # ISO 8601, epoch seconds, or a datetime
_VIEWS = 2  # known_at views kept: searches at one moment often follow one another


class Memory:
    """A temporal knowledge graph of what was said; use it `with` (blocking) or `async with`."""

    def __init__(
        self,
        store: Store,
        embedder: Embedder,
        build: Callable[[], Parts],
        *,
        ingest: Ingest | None = None,
        data: Path | None = None,
    ) -> None:
        """Take over an open store and the embedder that its vectors are from.

        build   returns the `Parts` of a run; called once, when something is to be ingested
        ingest  the runtime that carries out what is pending; None = this process
        data    the data folder: removals also delete texts that backfill runs keep there
        """
        self.store = store
        self.on_wait: OnWait = silent  # called with a line when a method waits for another process
        self.embedder = embedder
        self._build = build
        self.runtime: Ingest = LocalIngest(store, lambda: self.parts) if ingest is None else ingest
        self._corrections = Corrections(store, self._carry_out, data)
        self._views: dict[tuple[str, Instant, Instant], View] = {}

    @cached_property
    def parts(self) -> Parts:
        """The parts of a run, built at first use. Raises SettingsError."""
        return self._build()

    # ------------------------------------------------------------------------------- adding

    async def add(
        self,
        text: object,
        *,
        group: str,
        at: When | None = None,
        speaker: str | None = None,
        source: str = "default",
        kind: str | None = None,
        id: str | None = None,  # noqa: A002 - the field's name in every input format
        metadata: Mapping[str, Any] | None = None,
    ) -> Report:
        """Accept one episode and ingest what is pending.

        text    a text; with kind "json" any JSON value, with "triples" the list of triples
        at      when it was said; None = now, fixed at first acceptance
        Raises InputError for anything that is refused in a line of an input file.
        """
        row = dict(metadata or {})
        if clash := sorted(FIELDS & row.keys()):
            raise InputError(f"metadata cannot name {clash[0]!r}: it is a field of its own", field="metadata")
        row |= {"triples" if kind == "triples" else "text": text, "group": group, "source": source}
        row |= {"at": at, "speaker": speaker, "kind": kind, "id": id}
        return await self.add_many(
            [draft_from({key: value for key, value in row.items() if value is not None})]
        )

    async def add_many(
        self,
        items: Iterable[Item | Mapping[str, Any]],
        *,
        group: str | None = None,
        replace: bool = False,
        accept_only: bool = False,
        bulk: bool = False,
        on_step: OnStep = ignore,
        stop: Stop = never,
    ) -> Report:
        """Accept drafts, rows or items of the intake, then ingest until nothing is pending.

        group        for rows that name none. A row that cannot be used is in the report's refusals
        replace      replace episodes whose id is taken by other content
        accept_only  do not ingest
        bulk         use the backfill lane: what others add meanwhile is ingested first
        """
        before = last_sequences(self.store)
        taken = Submission(self.store, replace=replace, bulk=bulk)
        try:
            for item in self._items(items, group):
                taken.take(item)
                if stop():
                    break
            stopped = stop()
            taken.finish(complete=not stopped)
        except NoSpace as error:
            if not taken.accepted:
                raise
            return taken.report(IngestOutcome(stopped=True, reason=str(error)))
        if accept_only or stopped:
            return taken.report(IngestOutcome(stopped=stopped))
        return taken.report(await self._carry_out(taken.queued, before=before, stop=stop, on_step=on_step))

    async def ingest(self, *, on_step: OnStep = ignore, stop: Stop = never) -> Report:
        """Ingest everything that is pending, waiting for another process that does."""
        done = await self._carry_out(None, stop=stop, on_step=on_step)
        return Report(committed=done.committed, failed=done.failed, stopped=done.stopped, reason=done.reason)

    def check(self, items: Iterable[Item]) -> Report:
        """Return what accepting would refuse, conflicting ids included; accepts nothing."""
        return Report(refusals=tuple(refusals_of(self.store, items)))

    def preview(self, *, replace: bool = False) -> Preview:
        """Return a `Preview`: its `rows(draft)` are the changes that a draft would make."""
        from kgray.ingest.preview import Preview  # a process that only reads does not import them

        return Preview(self.parts, replace=replace)

    async def retry(
        self,
        *,
        group: str | None = None,
        episodes: Sequence[str] = (),
        on_step: OnStep = ignore,
        stop: Stop = never,
    ) -> Report:
        """Retry failed episodes: all, or those with these ids (kgray's or the client's)."""
        if group is not None:
            check_group(group)
        count = retry(self.store, group, episodes, now=times.now())
        report = await self.ingest(on_step=on_step, stop=stop)
        return replaced(report, accepted=count)

    # ------------------------------------------------------------------------------ reading

    async def search(
        self,
        query: str,
        *,
        group: str,
        as_of: When | None = None,
        known_at: When | None = None,
        scopes: Sequence[SearchScope] = SCOPES,
        limit: int = 10,
        recipe: str = "hybrid",
        filters: Filters | None = None,
        methods: Sequence[Method] | None = None,
        reranker: Reranker | None = None,
        centre: str | None = None,
        seeds: Sequence[str] = (),
        any_time: bool = False,
    ) -> list[Hit]:
        """Return ranked hits, best first; facts that hold at `as_of` (now), as known at `known_at` (now).

        The other arguments are the fields of kgray.search.Query.
        """
        asked = _query(
            query,
            group,
            as_of=as_of,
            known_at=known_at,
            filters=filters,
            scopes=tuple(scopes),
            limit=limit,
            recipe=recipe,
            methods=None if methods is None else tuple(methods),
            reranker=reranker,
            centre=centre,
            seeds=tuple(seeds),
            any_time=any_time,
        )
        view = self._view_at(group, asked.known_at)
        return await find_hits(self.store, self.embedder, asked, view=view)

    async def context(
        self,
        query: str,
        *,
        group: str,
        tokens: int = 1500,
        as_of: When | None = None,
        known_at: When | None = None,
        filters: Filters | None = None,
    ) -> Context:
        """Return the text to put into a prompt, at most `tokens` long by `kgray.search.count_tokens`."""
        asked = _query(query, group, as_of=as_of, known_at=known_at, filters=filters)
        view = self._view_at(group, asked.known_at)
        return await build_context(self.store, self.embedder, asked, tokens=tokens, view=view)

    async def history(self, name_or_id: str, *, group: str, known_at: When | None = None) -> History:
        """Return every span of an entity's facts, in order of their start.

        Raises NotFound, and Ambiguous where several entities have the name.
        """
        check_group(group)

        def read() -> History:
            view = self._view_at(group, _instant(known_at, "known_at")) or StoredView(self.store, group)
            return history_of(self.store, view, group, name_or_id)

        return at_one_moment(self.store, read)

    async def show(self, identifier: str, *, group: str) -> list[dict[str, Any]]:
        """Return the dump rows of one episode, entity, statement or fact and of all that belongs to it."""
        return shown(self.store, check_group(group), identifier)

    async def dump(self, *, group: str, known_at: When | None = None) -> list[str]:
        """Return the lines of the whole graph, sorted, without their newlines."""
        return dumping.lines(self._dumped(group, known_at))

    async def dump_hash(self, *, group: str, known_at: When | None = None) -> str:
        """Return the SHA-256 of the dump, in hex."""
        return dumping.digest(self._dumped(group, known_at))

    def _dumped(self, group: str, known_at: When | None) -> list[dumping.DumpRow]:
        return dumped(self.store, check_group(group), _instant(known_at, "known_at"))

    async def status(self, *, group: str | None = None) -> dict[str, GroupCounts]:
        """Return the ledger's counts by group."""
        if group is not None:
            check_group(group)
        return self.store.counts(group)

    async def groups(self) -> dict[str, GroupCounts]:
        """Return the groups with their counts."""
        return self.store.counts()

    async def failures(self, *, group: str | None = None) -> list[FailedEpisode]:
        """Return the failed episodes with their reasons."""
        if group is not None:
            check_group(group)
        return failures(self.store, group)

    async def verify(self, group: str) -> list[str]:
        """Compare the stored index with a derivation from the records; one line for each difference."""
        check_group(group)
        return differences(self.store, group)

    # ---------------------------------------------------------------------------- correcting

    async def merge(self, first: str, second: str, *, group: str, stop: Stop = never) -> dict[str, Any]:
        """Merge two entities into one (R16). Raises NotFound for an id that is not there."""
        return await self._corrections.ask(group, "merge", stop, entities=(first, second))

    async def split(
        self, entity: str, surfaces: Sequence[str], *, group: str, stop: Stop = never
    ) -> dict[str, Any]:
        """Make the mentions with these surfaces another entity (R16)."""
        if not surfaces:
            raise InputError("no surface: say which names are another entity", field="surface")
        return await self._corrections.ask(group, "split", stop, entities=(entity,), surfaces=tuple(surfaces))

    async def undo(self, sequence: int, *, group: str, stop: Stop = never) -> dict[str, Any]:
        """Undo the merge or split with this sequence."""
        return await self._corrections.ask(group, "undo", stop, target=sequence)

    async def retract(
        self,
        *,
        group: str,
        episodes: Sequence[str] = (),
        source: str | None = None,
        everything: bool = False,
        stop: Stop = never,
    ) -> dict[str, Any]:
        """Retract episodes; reads with an earlier `known_at` still see them (R25). Returns counts."""
        return await self._corrections.take_out("retract", group, episodes, source, everything, stop)

    async def remove(
        self,
        *,
        group: str,
        episodes: Sequence[str] = (),
        source: str | None = None,
        everything: bool = False,
        stop: Stop = never,
    ) -> dict[str, Any]:
        """Erase episodes and every trace of them (R25); returns counts.

        "compacted" in the result is False where erased bytes may still be in the files.
        """
        return await self._corrections.take_out("remove", group, episodes, source, everything, stop)

    # ------------------------------------------------------------------------------- inside

    async def _carry_out(self, queued: Mapping[str, Queued] | None, **how: Any) -> IngestOutcome:  # noqa: ANN401
        return await self.runtime.carry_out(queued, on_wait=self.on_wait, **how)

    def _items(self, items: Iterable[Item | Mapping[str, Any]], group: str | None) -> Iterator[Item]:
        defaults = Defaults(group=group)
        for number, item in enumerate(items, 1):
            if not isinstance(item, Mapping):
                yield item
                continue
            try:
                yield draft_from(item, defaults)
            except InputError as error:
                yield Refusal(file="<items>", line=number, field=error.field, reason=str(error))

    def _view_at(self, group: str, known_at: Instant | None) -> View | None:
        """Return the graph as known then; None = as known now, which the store holds."""
        if known_at is None:
            return None
        last = self.store.heads([group])[group].last_recorded
        if known_at >= last:
            return None
        # A view is valid until the group's next record, because what is removed since must not show.
        key = (group, known_at, last)
        view = self._views.pop(key, None) or derived(self.store, group, known_at)
        self._views[key] = view
        for old in list(self._views)[:-_VIEWS]:
            del self._views[old]
        return view

    # ----------------------------------------------------------------------------- lifetime

    def close(self) -> None:
        """Release the store; idempotent."""
        self._views.clear()
        self.runtime.close()
        self.store.close()

    async def __aenter__(self) -> Self:
        """Return this memory."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def __enter__(self) -> Blocking:
        """Return the same methods, blocking."""
        return Blocking(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()


def _instant(value: When | None, field: str) -> Instant | None:
    """Return a caller's moment as an instant. Raises InputError that names the argument."""
    if value is None:
        return None
    try:
        return times.parse(value)[0]
    except ValueError as error:
        raise InputError(f"{field}: {error}", field=field) from None


def _query(
    text: str,
    group: str,
    *,
    as_of: When | None,
    known_at: When | None,
    filters: Filters | None,
    **more: Any,  # noqa: ANN401 - the other fields of Query, as they are
) -> Query:
    """Return the checked query. Raises InputError, NotBuilt."""
    return Query(
        text=text,
        group=group,
        as_of=_instant(as_of, "as_of"),
        known_at=_instant(known_at, "known_at"),
        filters=filters or Filters(),
        **more,
    )


class Blocking:
    """The methods of a Memory, blocking; not for use inside a running event loop."""

    def __init__(self, memory: Memory) -> None:
        """Wrap a memory."""
        self._memory = memory

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        """Return the method, as a call that blocks until it is done."""
        method = getattr(self._memory, verb)

        def run(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever the verb takes and gives
            answer = method(*args, **kwargs)
            return asyncio.run(answer) if asyncio.iscoroutine(answer) else answer

        return run
