"""A run of a group's communities: found, written, and published in one transaction.

Readers see the run before it or this one, whole. A retraction or removal that comes in between voids it, and
it is made again; so does another refresh that was first. A process that is killed leaves nothing behind but
answers of the model, in the journal, by the hash of what was shown: they are not asked for again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain, count
from typing import Any

import numpy as np

from kgray import kinds, reads, rows, times
from kgray.communities import found as finding
from kgray.communities import texts as writing
from kgray.communities.found import Clustering, Found, Snapshot, clustered, current
from kgray.communities.texts import OFFLINE, Kept, Text
from kgray.errors import ContentError, Cost, Unavailable
from kgray.graph import AS_OF, PROFILE, Community
from kgray.kinds import AnswerRow, CommunityRunRow
from kgray.ports import Appending, Embedder, Store, Summarizer, SummaryRequest
from kgray.prompting.tokens import count_tokens
from kgray.search.loading import texts_of

_KEPT_RUNS, _CENTRAL = 2, 10  # runs; members that an upper community names
_TRIES = 10
_GROWN = 1.5  # times the entities of the last cold run: then the next run is cold
_NEWS = 0.1  # of a group's entities: with `due`, a group with less news is left as it is
_JOURNALED = "community "  # begins the key of an answer
_AT_ONCE = 16  # calls at the same time, of all groups: ingestion has the rest of the model's streams


OnGroup = Callable[[str, int, int], None]  # a group, how many are done, how many there are


@dataclass(slots=True, kw_only=True)
class Refreshed:
    """What a refresh did, of one group: a row of `kgray communities refresh --json`."""

    run: int
    cold: bool = False
    news: bool = True  # False: nothing was recorded since, or less than is due: the run before stays
    levels: int = 0
    communities: int = 0
    kept: int = 0  # communities whose text was there, that a model wrote, and that none did
    written: int = 0
    offline: int = 0
    profiles: int = 0  # entities that a model has written of, now or before
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def pay(self, cost: Cost) -> None:
        """Count what calls cost."""
        self.calls += cost.calls
        self.prompt_tokens += cost.prompt_tokens
        self.completion_tokens += cost.completion_tokens


@dataclass(slots=True, kw_only=True)
class Refresh:
    """How groups are refreshed."""

    store: Store
    embedder: Embedder
    summarizer: Summarizer | None = None  # None = texts without a model
    cold: bool = False
    due: bool = False  # only groups of which a tenth is new
    profiles: bool = False  # have the model write of entities too; else what it wrote is kept while so
    max_tokens: int | None = None  # of all groups together; what is over is written without the model
    dry_run: bool = False  # count the calls and estimate their tokens; ask nothing, publish nothing
    cluster: Clustering = clustered  # finds communities: here, or elsewhere
    spent: int = 0  # tokens, estimated before a call and counted after it
    gone: bool = False  # the model is out of reach, and asked no more
    gate: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))

    async def groups(
        self, groups: Sequence[str], *, at_once: int = 1, on_group: OnGroup = lambda *_: None
    ) -> dict[str, Refreshed]:
        """Refresh groups, so many at a time; what `group` raises comes once all have ended."""
        done: dict[str, Refreshed] = {}
        gate = asyncio.Semaphore(at_once)

        async def one(group: str) -> None:
            async with gate:
                done[group] = await self.group(group)
            on_group(group, len(done), len(groups))

        for fault in await asyncio.gather(*map(one, groups), return_exceptions=True):
            if fault is not None:
                raise fault
        return {group: done[group] for group in groups}

    async def group(self, group: str) -> Refreshed:
        """Refresh one group. Raises Unavailable where it changes faster than it can be read."""
        writer = OFFLINE if self.summarizer is None else self.summarizer.identity
        for _ in range(_TRIES):
            if (kept := self._as_it_is(group, writer)) is not None:
                return kept
            # In this thread: an embedded store is read by one at a time.
            shown = finding.snapshot(self.store, group)
            parent = shown.parent
            waits = parent is not None and parent.writer == writer and shown.news() < _NEWS
            if self.due and parent is not None and waits and not shown.corrected:
                return _kept(parent, shown.listed, len(shown.profiles))
            cold = self.cold or parent is None or len(shown.entities) > _GROWN * parent.cold_entities
            done = Refreshed(run=parent.run + 1 if parent else 1, cold=cold)
            found = await asyncio.to_thread(finding.communities, shown, cold=done.cold, cluster=self.cluster)
            done.levels, done.communities = len(found), sum(map(len, found))
            found.append([] if self.summarizer is None else finding.profiled(shown, every=self.profiles))
            texts = await _Writer(self, shown, done).all(found)
            if self.dry_run:
                return done
            made = await self._made(shown, done, found, texts)
            entities = len(shown.entities)
            then = entities if cold or parent is None else parent.cold_entities
            run = CommunityRunRow(
                run=done.run, watermark=shown.watermark, recorded_at=shown.recorded_at, made_at=times.now(),
                cold=cold, entities=entities, cold_entities=then, writer=writer,
            )  # fmt: skip
            if self.store.append([group], partial(_published, shown=shown, made=made, run=run)):
                return done
        raise Unavailable(f"group {group} changes faster than its communities can be found: run it again")

    def _as_it_is(self, group: str, writer: str) -> Refreshed | None:
        """Return the current run where it says all that there is to say, in the words of this writer."""
        parent = None if self.cold or self.profiles else current(self.store, group)
        recorded_at = self.store.heads([group])[group].last_recorded
        if parent is None or (parent.recorded_at, parent.writer) != (recorded_at, writer):
            return None
        listed, profiles = texts_of(self.store, group, parent.run)
        if self.summarizer is not None and any(one.writer != writer for one in listed):
            return None
        return _kept(parent, listed, len(profiles))

    async def _made(
        self, shown: Snapshot, done: Refreshed, found: Sequence[Sequence[Found]], texts: Mapping[str, Text]
    ) -> list[Community]:
        """Return the communities with their texts and vectors; a text that was there keeps its vector."""
        before = (*shown.listed, *shown.profiles.values())
        vectors = {one.text: one.vector for one in before if one.vector}
        told = {id_: text.text for id_, text in texts.items()}
        new = sorted(set(told.values()) - vectors.keys())
        pairs = zip(new, await self.embedder.embed(new), strict=True)
        vectors |= {text: rows.vector_bytes(vector) for text, vector in pairs}
        return [
            Community(
                run=done.run, id=one.id, level=one.level, parent=one.parent, size=len(one.members),
                members=tuple(one.members if not one.level else one.members[:_CENTRAL]),
                sources=np.array(sorted(one.sources(shown)), "<u4").tobytes(), vector=vectors[told[one.id]],
                **asdict(texts[one.id]),
            )
            for level in found for one in level if one.id in texts
        ]  # fmt: skip


def _kept(run: CommunityRunRow, listed: Sequence[Community], profiles: int) -> Refreshed:
    levels, count = len({one.level for one in listed}), len(listed)
    return Refreshed(run=run.run, news=False, levels=levels, communities=count, kept=count, profiles=profiles)


class _Writer:
    """The texts of one run."""

    def __init__(self, refresh: Refresh, shown: Snapshot, done: Refreshed) -> None:
        self.refresh, self.shown, self.done = refresh, shown, done
        head = str if refresh.summarizer is None else refresh.summarizer.head
        self.before, self.keeping = {one.id: one for one in shown.listed}, Kept(shown, head)
        self.known = self._journaled(one.content for one in shown.listed) if refresh.summarizer else {}

    async def all(self, found: Sequence[Sequence[Found]]) -> dict[str, Text]:
        """Return a text of each community, level by level: an upper one is shown those below it."""
        lowest = [level for level in found if level and level[0].level != PROFILE]
        texts, names = await asyncio.to_thread(writing.offline, self.shown, lowest), set[str]()
        for level in found:
            written = await asyncio.gather(*(self._written(one, texts) for one in level))
            for community, text in zip(level, written, strict=True):
                if text is not None:
                    texts[community.id] = text
                if community.level == PROFILE:
                    self.done.profiles += text is not None
                    continue
                old = self.before.get(community.id)
                same = old is not None and old.content == texts[community.id].content
                kept = same and self.refresh.summarizer is None
                self.done.kept += kept
                self.done.offline += text is None and not kept
                own = texts[community.id].name  # but no other community of the run has it
                tries = chain((own,), (f"{own} ({again})" for again in count(2)))
                name = next(name for name in tries if name not in names)
                names.add(name)
                texts[community.id] = replace(texts[community.id], name=name)
        return texts

    async def _written(self, one: Found, texts: Mapping[str, Text]) -> Text | None:
        """Return the text of a model; None where there is none, or it says nothing usable."""
        summarizer = self.refresh.summarizer
        if summarizer is None:
            return None
        if (kept := self._kept(one, texts, summarizer.identity)) is not None:
            self.done.kept += 1
            return kept
        parts = await asyncio.gather(*(self._written(part, texts) for part in writing.parts_of(one, texts)))
        there = [part for part in parts if part is not None]
        if parts and not there and one.children:
            return None  # all that is in it would be too much for one prompt
        request = writing.request_of(self.shown, one, texts, there, summarizer.head)
        key = writing.key_of(summarizer.identity, request.task, request.head, request.data)
        known = self.known.get(key) or self._journaled([key]).get(key, ())
        if not known and one.level == PROFILE and not self.refresh.profiles:
            return None
        may_stay = len(there) == len(parts) and not one.is_part and one.level != PROFILE
        note = [self.keeping.note(one, texts)] if may_stay and not known else []
        reply = known[0] if known else await self._asked(one, request, key, note)
        if reply is None:
            return None
        if one.level != PROFILE and not one.is_part:
            self.done.kept += bool(known)
            self.done.written += not known
        return writing.written(request, reply, summarizer.identity, key)

    def _kept(self, one: Found, texts: Mapping[str, Text], writer: str) -> Text | None:
        """Return the text of the run before, where it may stay though not quite the same would be shown."""
        old = self.before.get(one.id)
        if old is None or (old.level, old.writer) != (one.level, writer):
            return None
        _, *note = self.known.get(old.content, ({},))  # there is none in the journal of an earlier version
        since = self.keeping.since(note[0], one, texts) if note else None
        if since is None:
            return None
        one.rested = set(np.frombuffer(old.sources, "<u4").tolist())  # of who has left, too (R25)
        report = {name: said for name, said in old.report.items() if name != AS_OF}
        report |= {AS_OF: times.show(since)} if since < self.shown.recorded_at else {}
        return Text(name=old.name, summary=old.summary, writer=writer, content=old.content, report=report)

    def _journaled(self, keys: Iterable[str]) -> dict[str, Sequence[Mapping[str, Any]]]:
        """Return by key the reply to a request and the note on it, of those that were made."""
        asked = [_JOURNALED + key for key in keys]
        found = self.refresh.store.rows(reads.ANSWERS_TO, self.shown.group, asked)
        return {row.request.removeprefix(_JOURNALED): rows.answers(row) for row in found}

    async def _asked(
        self, one: Found, request: SummaryRequest, key: str, note: Sequence[Mapping[str, Any]]
    ) -> Mapping[str, Any] | None:
        """Return what the model says; None where it is not asked any more, or says nothing usable."""
        refresh, summarizer = self.refresh, self.refresh.summarizer
        prompt = count_tokens(request.head) + count_tokens(request.data)
        price = prompt + request.room
        async with refresh.gate:
            over = refresh.max_tokens is not None and refresh.spent + price > refresh.max_tokens
            if refresh.gone or over or summarizer is None:
                return None
            refresh.spent += price
            if refresh.dry_run:
                self.done.pay(Cost(1, prompt, request.room))
                return None
            try:
                reply, cost = await summarizer.write(request)
            except (ContentError, Unavailable) as error:
                refresh.gone |= isinstance(error, Unavailable)
                self.done.pay(error.spent)
                return None
        refresh.spent += cost.prompt_tokens + cost.completion_tokens - price
        self.done.pay(cost)
        if sources := sorted(one.sources(self.shown)):
            first, others = sources[0], np.array(sources[1:], "<u4").tobytes()
            answer = rows.answers_row(first, _JOURNALED + key, [reply, *note], *cost, sources=others)
            keep = partial(_journal, group=self.shown.group, answer=answer, sources=sources)
            refresh.store.append([self.shown.group], keep)
        return reply


def _journal(at: Appending, *, group: str, answer: AnswerRow, sources: Sequence[int]) -> None:
    """Keep an answer that rests on these episodes; nothing where one of them is gone (R25)."""
    heads = at.rows(reads.EPISODE_HEADS_AT, group, sources)
    if {row.sequence for row in heads if row.state != kinds.WITHDRAWN}.issuperset(sources):
        at.put(kinds.ANSWERS, group, answer)


def _published(at: Appending, *, shown: Snapshot, made: Sequence[Community], run: CommunityRunRow) -> bool:
    """Make a run the current one, and drop what is older than the one before; False where it is void."""
    group = shown.group
    if finding.withdrawn(at.rows(kinds.OPERATIONS.all, group)) != shown.withdrawn:
        return False
    if current(at, group) != shown.parent:
        return False
    at.put(kinds.COMMUNITY_RUNS, group, run)
    for one in made:
        at.put(kinds.COMMUNITIES, group, rows.community_row(one))
    for old in finding.runs(at, group)[: -(_KEPT_RUNS - 1)]:
        at.drop(kinds.COMMUNITY_RUNS, group, (old.run,))
        for row in at.rows(reads.COMMUNITIES_OF_RUN, group, [old.run]):
            at.drop(kinds.COMMUNITIES, group, (row.run, row.id))
    return True
