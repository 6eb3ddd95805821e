"""A run of a group's communities: found, written, and published in one transaction.

Readers see the run before it or this one, whole. A retraction or removal that comes in between voids it, and
it is made again; so does another refresh that was first. A process that is killed leaves nothing behind but
answers of the model, in the journal, by the hash of what was shown: they are not asked for again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np

from kgray import kinds, rows, times
from kgray.communities import texts as writing
from kgray.communities.export import Run, Snapshot, current, runs, snapshot, withdrawn
from kgray.communities.found import Clustering, Found, clustered, communities, is_cold
from kgray.communities.texts import OFFLINE, Text
from kgray.errors import ContentError, Cost, Unavailable
from kgray.kinds import Kind, Row
from kgray.ports import Appending, Embedder, Store, Summarizer, SummaryRequest
from kgray.prompting.tokens import count_tokens

KEPT_RUNS = 2
_TRIES = 10
_AT_ONCE = 16  # communities that are written at the same time: ingestion has the rest of the model's streams


@dataclass(slots=True, kw_only=True)
class Refreshed:
    """What a refresh did, of one group.

    kept, written, offline    communities whose text was there, that a model wrote, and that none did
    news        False: nothing was recorded since the run before, so that is the current one still
    """

    run: int
    cold: bool = False
    news: bool = True
    levels: int = 0
    communities: int = 0
    kept: int = 0
    written: int = 0
    offline: int = 0
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the form that `kgray communities refresh --json` prints."""
        return asdict(self)


@dataclass(slots=True, kw_only=True)
class Refresh:
    """How groups are refreshed.

    summarizer  None = offline texts
    max_tokens  of all groups together; None = any number. What is over is written offline
    dry_run     count the calls and estimate their tokens; ask nothing, publish nothing
    cluster     finds communities: here, or elsewhere
    """

    store: Store
    embedder: Embedder
    summarizer: Summarizer | None = None
    cold: bool = False
    max_tokens: int | None = None
    dry_run: bool = False
    cluster: Clustering = clustered
    on_text: Callable[[], None] = lambda: None
    spent: int = 0  # tokens, estimated before a call and counted after it
    gone: str = ""  # why the model is asked no more

    async def group(self, group: str) -> Refreshed:
        """Refresh one group. Raises Unavailable where it is withdrawn from faster than it can be read."""
        for _ in range(_TRIES):
            shown = snapshot(self.store, group)  # in this thread: an embedded store is read by one at a time
            if self._is_current(shown):
                return _unchanged(shown)
            cold = self.cold or is_cold(shown)
            find = partial(communities, shown, cold=cold, cluster=self.cluster)
            found = await asyncio.to_thread(find)
            done = Refreshed(
                run=shown.parent.run + 1 if shown.parent else 1,
                cold=cold,
                levels=len(found),
                communities=sum(map(len, found)),
            )
            texts = await _Writer(self, shown, done).all(found)
            if self.dry_run:
                return done
            vectors = await self._embedded(shown, texts)
            made = _rows(shown, found, texts, vectors, done, self._identity)
            if self.store.append([group], partial(_published, shown=shown, made=made)):
                return done
        raise Unavailable(f"group {group} changes faster than its communities can be found: run it again")

    @property
    def _identity(self) -> str:
        return OFFLINE if self.summarizer is None else self.summarizer.identity

    def _is_current(self, shown: Snapshot) -> bool:
        """Whether the current run says all that there is to say, in the words of this writer."""
        parent = shown.parent
        return (
            parent is not None
            and not self.cold
            and (parent.recorded_at, parent.writer) == (shown.recorded_at, self._identity)
            and len(shown.texts) == len(shown.listed)
            and (self.summarizer is None or all(row[6] != OFFLINE for row in shown.texts.values()))
        )

    async def _embedded(self, shown: Snapshot, texts: Mapping[str, Text]) -> dict[str, bytes]:
        """Return the vectors of the texts; those that the current run has already are taken from it."""
        there = {(row[2], row[3]): row[8] for row in shown.texts.values()}
        new = [id_ for id_, text in texts.items() if (text.name, text.summary) not in there]
        made = await self.embedder.embed([f"{texts[i].name}\n{texts[i].summary}" for i in new])
        vectors = {id_: rows.vector_bytes(vector) for id_, vector in zip(new, made, strict=True)}
        return {id_: vectors.get(id_) or there[text.name, text.summary] for id_, text in texts.items()}


def _unchanged(shown: Snapshot) -> Refreshed:
    assert shown.parent is not None  # noqa: S101 - there is a current run
    count = len(shown.listed)
    levels = len({one.level for one in shown.listed})
    return Refreshed(run=shown.parent.run, news=False, levels=levels, communities=count, kept=count)


# ------------------------------------------------------------------------------------ texts


@dataclass(slots=True)
class _Writer:
    """The texts of one run."""

    refresh: Refresh
    shown: Snapshot
    done: Refreshed
    names: Counter[str] = field(default_factory=Counter)

    async def all(self, found: Sequence[Sequence[Found]]) -> dict[str, Text]:
        """Return a text of each community, level by level: an upper one is shown those below it."""
        texts = await asyncio.to_thread(writing.offline, self.shown, found)
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(community: Found) -> Text:
            async with gate:
                return await self._text(community, texts)

        for level in found:
            made = await asyncio.gather(*map(one, level))
            for community, text in zip(level, made, strict=True):
                texts[community.id] = writing.told_apart(text, self.names)
        return texts

    async def _text(self, one: Found, texts: Mapping[str, Text]) -> Text:
        text = texts[one.id]
        before = self.shown.texts.get(one.id)
        if self.refresh.summarizer is not None:
            said, asked = await self._asked(one, texts, self.refresh.summarizer)
            if said is not None:
                self.done.kept += not asked
                self.done.written += asked
                return said
        elif before is not None and before[5] == text.content:
            self.done.kept += 1
            return text
        self.done.offline += 1
        return text

    async def _asked(
        self, one: Found, texts: Mapping[str, Text], summarizer: Summarizer
    ) -> tuple[Text | None, bool]:
        """Return what the model says of a community, and whether it was called for that.

        None where it is asked no more, or says nothing usable.
        """
        parts, whole = writing.requests(self.shown, one, texts)
        summaries, asked = [], False
        for part in parts:
            reply, called = await self._reply(one, part, summarizer)
            if reply is None:
                return None, called
            asked |= called
            summaries.append(reply["summary"])
        whole = whole or writing.reduced(self.shown, one, summaries)
        reply, called = await self._reply(one, whole, summarizer)
        if reply is None:
            return None, called
        key = _key(whole, summarizer)
        return writing.written(whole, reply, summarizer.identity, key), asked or called

    async def _reply(
        self, one: Found, request: SummaryRequest, summarizer: Summarizer
    ) -> tuple[Mapping[str, Any] | None, bool]:
        refresh, group = self.refresh, self.shown.group
        key = f"community {_key(request, summarizer)}"
        for row in refresh.store.rows(kinds.ANSWERS_TO, group, [key]):
            return rows.answers(row)[0], False
        price = count_tokens(request.head) + count_tokens(request.data) + request.room
        if refresh.gone or (refresh.max_tokens is not None and refresh.spent + price > refresh.max_tokens):
            return None, False
        refresh.spent += price
        if refresh.dry_run:
            self._count(Cost(1, price - request.room, request.room))
            return None, True
        try:
            reply, cost = await summarizer.write(request)
        except (ContentError, Unavailable) as error:
            if isinstance(error, Unavailable):
                refresh.gone = str(error)
            self._count(error.spent)
            return None, True
        refresh.spent += cost.prompt_tokens + cost.completion_tokens - price
        self._count(cost)
        sources = sorted(one.sources(self.shown))
        row = rows.answers_row(key, [reply], *cost)
        refresh.store.append([group], lambda at: _journaled(at, group, row, sources))
        refresh.on_text()
        return reply, True

    def _count(self, cost: Cost) -> None:
        self.done.calls += cost.calls
        self.done.prompt_tokens += cost.prompt_tokens
        self.done.completion_tokens += cost.completion_tokens


def _key(request: SummaryRequest, summarizer: Summarizer) -> str:
    return writing.key_of(summarizer.identity, request.task, request.head, request.data)


def _journaled(at: Appending, group: str, answer: Row, sources: Sequence[int]) -> None:
    """Keep an answer with the episodes that it rests on; nothing where one of them is gone (R25)."""
    there = {row[0] for row in at.rows(kinds.EPISODE_HEADS_AT, group, sources)}
    if sources and there.issuperset(sources):
        at.put(kinds.ANSWERS, group, answer)
        for sequence in sources:
            at.put(kinds.ANSWER_USES, group, (sequence, answer[0]))


# ------------------------------------------------------------------------------------ publishing


def _rows(
    shown: Snapshot,
    found: Sequence[Sequence[Found]],
    texts: Mapping[str, Text],
    vectors: Mapping[str, bytes],
    done: Refreshed,
    writer: str,
) -> dict[Kind, list[Row]]:
    """Return the rows of a run."""
    entities = len(shown.entities)
    then = entities if done.cold or shown.parent is None else shown.parent.cold_entities
    run = Run(done.run, shown.watermark, shown.recorded_at, times.now(), done.cold, entities, then, writer)
    listed: list[Row] = []
    told: list[Row] = []
    for one in (one for level in found for one in level):
        members = tuple(one.members if not one.level else one.members[:10])
        listed.append((run.run, one.id, one.level, one.parent, one.size, members))
        text = texts[one.id]
        report = rows.pack(dict(text.report)) if text.report else ""
        sources = np.array(sorted(one.sources(shown)), "<u4").tobytes()
        told.append(
            (
                run.run, one.id, text.name, text.summary, report, text.content, text.writer, sources,
                vectors[one.id],
            )
        )  # fmt: skip
    row = tuple(asdict(run).values())
    return {kinds.COMMUNITY_RUNS: [row], kinds.COMMUNITIES: listed, kinds.COMMUNITY_TEXTS: told}


def _published(at: Appending, *, shown: Snapshot, made: Mapping[Kind, Sequence[Row]]) -> bool:
    """Make a run the current one, and drop what is older than the one before; False where it is void."""
    group = shown.group
    if withdrawn(at.rows(kinds.ALL["operations"], group)) != shown.withdrawn:
        return False
    if current(at, group) != shown.parent:
        return False
    for kind, found in made.items():
        for row in found:
            at.put(kind, group, row)
    for old in runs(at, group)[: -(KEPT_RUNS - 1) or None]:
        at.drop(kinds.COMMUNITY_RUNS, group, (old.run,))
        for row in at.rows(kinds.COMMUNITIES_OF_RUN, group, [old.run]):
            at.drop(kinds.COMMUNITIES, group, row[:2])
            at.drop(kinds.COMMUNITY_TEXTS, group, row[:2])
    return True
