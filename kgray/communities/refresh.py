"""A refresh of a group's communities: detection, texts, and the publication of a run in one transaction.

Readers see the previous run or this run, never a mixture. A concurrent retraction, removal or refresh voids
the run, and the refresh starts again. A cold run ignores the previous communities; others begin with them.

The journal stores each answer of a model by the hash of its request. After a crash, the next run uses the
answers. An answer has a note, which tells whether its text stays valid (`texts.Validity`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain, count
from typing import Any

import numpy as np

from kgray.communities import detection
from kgray.communities import texts as writing
from kgray.communities.detection import Cluster, Clustering, Snapshot, detect_levels, newest_run
from kgray.communities.texts import OFFLINE, Text, Validity
from kgray.domain import times
from kgray.domain.graph import AS_OF, PROFILE, Community
from kgray.errors import ContentError, Cost, Unavailable
from kgray.models.prompting.tokens import count_tokens
from kgray.ports import Appending, Embedder, Store, Summarizer, SummaryRequest
from kgray.schema import kinds, reads, rows
from kgray.schema.kinds import AnswerRow, CommunityRunRow
from kgray.search.loading import texts_of

_STORED_RUNS, _CENTRAL = 2, 10  # stored runs; listed members of an upper community
_TRIES = 10
COLD_GROWTH = 1.5  # a run is cold if there are more entities, by this factor, than in the last cold run
MIN_NEWS = 0.1  # share of new or changed entities below which `due` skips a group
_JOURNALED = "community "  # prefix of an answer's key
_AT_ONCE = 16  # concurrent calls for all groups; the other streams of the model are for ingestion
OnGroup = Callable[[str, int, int], None]  # (group, groups done, groups in total)


@dataclass(slots=True, kw_only=True)
class Refreshed:
    """The result of a refresh of one group: a row of `kgray communities refresh --json`."""

    run: int
    cold: bool = False
    news: bool = True  # False: the previous run stays, for no changes, or (`due`) too few
    levels: int = 0
    communities: int = 0
    kept: int = 0  # communities with a reused text
    written: int = 0  # communities with a new text by the model
    offline: int = 0  # communities with a new text without a model
    profiles: int = 0  # entities with a profile, new or reused
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def count_text(self, *, is_reused: bool) -> None:
        """Count a text by the model."""
        self.kept += is_reused
        self.written += not is_reused

    def pay(self, cost: Cost) -> None:
        """Add the cost of calls."""
        self.calls += cost.calls
        self.prompt_tokens += cost.prompt_tokens
        self.completion_tokens += cost.completion_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshReport:
    """The result of a refresh, by group."""

    groups: Mapping[str, Refreshed]


@dataclass(slots=True, kw_only=True)
class Refresh:
    """The settings and the shared state of a refresh of groups."""

    store: Store
    embedder: Embedder
    summarizer: Summarizer | None = None  # None = texts without a model
    cold: bool = False
    due: bool = False  # skip groups with fewer new or changed entities than MIN_NEWS
    profiles: bool = False  # write new profiles of entities; else only reuse valid profiles
    max_tokens: int | None = None  # of all groups together; further texts are written without the model
    dry_run: bool = False  # count the calls and estimate their tokens; call nothing, publish nothing
    cluster: Clustering = detect_levels  # detects communities, in this process or elsewhere
    spent: int = 0  # tokens of all calls; of a call in flight, an estimate
    is_unreachable: bool = False  # the model does not answer, and gets no further calls
    gate: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))

    async def groups(
        self, groups: Sequence[str], *, at_once: int = 1, on_group: OnGroup = lambda *_: None
    ) -> dict[str, Refreshed]:
        """Refresh groups, `at_once` concurrently; an error of `group` is raised after all have ended."""
        results: dict[str, Refreshed] = {}
        gate = asyncio.Semaphore(at_once)

        async def refresh(group: str) -> None:
            async with gate:
                results[group] = await self.group(group)
            on_group(group, len(results), len(groups))

        for fault in await asyncio.gather(*map(refresh, groups), return_exceptions=True):
            if fault is not None:
                raise fault
        return {group: results[group] for group in groups}

    async def group(self, group: str) -> Refreshed:
        """Refresh one group. Raises Unavailable if it changes faster than it can be read."""
        writer = OFFLINE if self.summarizer is None else self.summarizer.identity
        for _ in range(_TRIES):
            if (unchanged := self._unchanged(group, writer)) is not None:
                return unchanged
            # Read in this thread: only one thread at a time can read an embedded store.
            snapshot = detection.snapshot(self.store, group)
            parent = snapshot.parent
            has_little_news = parent is not None and parent.writer == writer and snapshot.news() < MIN_NEWS
            if self.due and parent is not None and has_little_news and not snapshot.has_corrections:
                return _unchanged_result(parent, snapshot.communities, len(snapshot.profiles))
            cold = self.cold or parent is None or len(snapshot.entities) > COLD_GROWTH * parent.cold_entities
            result = Refreshed(run=parent.run + 1 if parent else 1, cold=cold)
            levels = await asyncio.to_thread(detection.communities, snapshot, cold=cold, cluster=self.cluster)
            result.levels, result.communities = len(levels), sum(map(len, levels))
            if self.summarizer is not None:
                levels.append(detection.profile_clusters(snapshot, every=self.profiles))
            texts = await _Writer(self, snapshot, result).all(levels)
            if self.dry_run:
                return result
            written = await self._communities(snapshot, result, levels, texts)
            entities = len(snapshot.entities)
            cold_entities = entities if cold or parent is None else parent.cold_entities
            run = CommunityRunRow(
                run=result.run, watermark=snapshot.watermark, recorded_at=snapshot.recorded_at,
                made_at=times.now(), cold=cold, entities=entities, cold_entities=cold_entities, writer=writer,
            )  # fmt: skip
            publish = partial(_published, snapshot=snapshot, communities=written, run=run)
            if self.store.append([group], publish):
                return result
        raise Unavailable(f"group {group} changes faster than its communities can be found: run it again")

    def _unchanged(self, group: str, writer: str) -> Refreshed | None:
        """Return the current run if nothing was recorded since, and all its texts are by this writer."""
        parent = None if self.cold or self.profiles else newest_run(self.store, group)
        recorded_at = self.store.heads([group])[group].last_recorded
        if parent is None or (parent.recorded_at, parent.writer) != (recorded_at, writer):
            return None
        listed, profiles = texts_of(self.store, group, parent.run)
        if self.summarizer is not None and any(community.writer != writer for community in listed):
            return None
        return _unchanged_result(parent, listed, len(profiles))

    async def _communities(
        self, snapshot: Snapshot, result: Refreshed, levels: Sequence[Sequence[Cluster]],
        texts: Mapping[str, Text],
    ) -> list[Community]:  # fmt: skip
        """Return the communities with their texts and vectors; an unchanged text reuses its vector."""
        previous = (*snapshot.communities, *snapshot.profiles.values())
        vectors = {c.text: c.vector for c in previous if c.vector}
        wordings = {id_: text.text for id_, text in texts.items()}
        new = sorted(set(wordings.values()) - vectors.keys())
        pairs = zip(new, await self.embedder.embed(new), strict=True)
        vectors |= {text: rows.vector_bytes(vector) for text, vector in pairs}
        return [
            Community(
                run=result.run, id=c.id, level=c.level, parent=c.parent, size=len(c.members),
                members=tuple(c.members if not c.level else c.members[:_CENTRAL]),
                sources=np.array(sorted(c.sources(snapshot)), "<u4").tobytes(),
                vector=vectors[wordings[c.id]], **asdict(texts[c.id]),
            )
            for level in levels for c in level if c.id in texts
        ]  # fmt: skip


def _unchanged_result(run: CommunityRunRow, listed: Sequence[Community], profiles: int) -> Refreshed:
    levels, count = len({community.level for community in listed}), len(listed)
    return Refreshed(run=run.run, news=False, levels=levels, communities=count, kept=count, profiles=profiles)


class _Writer:
    """Writes the texts of one run."""

    def __init__(self, refresh: Refresh, snapshot: Snapshot, result: Refreshed) -> None:
        self.refresh, self.snapshot, self.result = refresh, snapshot, result
        head = str if refresh.summarizer is None else refresh.summarizer.head
        self.previous = {community.id: community for community in snapshot.communities}
        self.validity = Validity(snapshot, head)
        contents = [community.content for community in snapshot.communities if refresh.summarizer]
        self.journaled = self._journaled(contents) if contents else {}

    async def all(self, levels: Sequence[Sequence[Cluster]]) -> dict[str, Text]:
        """Return a text for each community, level by level, because upper texts need lower texts."""
        lowest = [level for level in levels if level and level[0].level != PROFILE]
        texts, names = await asyncio.to_thread(writing.offline, self.snapshot, lowest), set[str]()
        for level in levels:
            written = await asyncio.gather(*(self._written(cluster, texts) for cluster in level))
            for community, text in zip(level, written, strict=True):
                if text is not None:
                    texts[community.id] = text
                if community.level == PROFILE:
                    self.result.profiles += text is not None
                    continue
                old = self.previous.get(community.id)
                is_same = old is not None and old.content == texts[community.id].content
                is_reused = is_same and self.refresh.summarizer is None
                self.result.kept += is_reused
                self.result.offline += text is None and not is_reused
                own_name = texts[community.id].name  # names are unique in a run
                tries = chain((own_name,), (f"{own_name} ({number})" for number in count(2)))
                name = next(name for name in tries if name not in names)
                names.add(name)
                texts[community.id] = replace(texts[community.id], name=name)
        return texts

    async def _written(self, cluster: Cluster, texts: Mapping[str, Text]) -> Text | None:
        """Return the model's text; None without a model or a usable reply."""
        summarizer = self.refresh.summarizer
        if summarizer is None:
            return None
        if (reused := self._reused(cluster, texts, summarizer.identity)) is not None:
            self.result.count_text(is_reused=True)
            return reused
        jobs = (self._written(part, texts) for part in writing.parts_of(cluster, texts))
        parts = await asyncio.gather(*jobs)
        usable = [part for part in parts if part is not None]
        if parts and not usable and cluster.children:
            return None  # the children do not fit in one prompt, and their parts have no texts
        request = writing.request_of(self.snapshot, cluster, texts, usable, summarizer.head)
        key = writing.key_of(summarizer.identity, request.task, request.head, request.data)
        answer = self.journaled.get(key) or self._journaled([key]).get(key, ())
        if not answer and cluster.level == PROFILE and not self.refresh.profiles:
            return None
        may_stay = len(usable) == len(parts) and not cluster.is_part and cluster.level != PROFILE
        note = [self.validity.note(cluster, texts)] if may_stay and not answer else []
        reply = answer[0] if answer else await self._reply(cluster, request, key, note)
        if reply is None:
            return None
        if cluster.level != PROFILE and not cluster.is_part:
            self.result.count_text(is_reused=bool(answer))
        return writing.written(request, reply, summarizer.identity, key)

    def _reused(self, cluster: Cluster, texts: Mapping[str, Text], writer: str) -> Text | None:
        """Return the previous run's text if it is valid by its note, even if a new request would differ."""
        old = self.previous.get(cluster.id)
        if old is None or (old.level, old.writer) != (cluster.level, writer):
            return None
        _, *note = self.journaled.get(old.content, ({},))  # earlier versions stored no note
        valid_at = self.validity.valid_at(note[0], cluster, texts) if note else None
        if valid_at is None:
            return None
        cluster.text_sources = {*np.frombuffer(old.sources, "<u4").tolist()}  # also of former members (R25)
        report = {name: value for name, value in old.report.items() if name != AS_OF}
        report |= {AS_OF: times.show(valid_at)} if valid_at < self.snapshot.recorded_at else {}
        return Text(name=old.name, summary=old.summary, writer=writer, content=old.content, report=report)

    def _journaled(self, keys: Iterable[str]) -> dict[str, Sequence[Mapping[str, Any]]]:
        """Return key -> (reply, note), for the requests with an answer in the journal."""
        requests = [_JOURNALED + key for key in keys]
        answers = self.refresh.store.rows(reads.ANSWERS_TO, self.snapshot.group, requests)
        return {row.request.removeprefix(_JOURNALED): rows.answers(row) for row in answers}

    async def _reply(
        self, cluster: Cluster, request: SummaryRequest, key: str, note: Sequence[Mapping[str, Any]]
    ) -> Mapping[str, Any] | None:
        """Return the model's reply; None if it is unusable, or if no call is possible or allowed."""
        refresh, summarizer = self.refresh, self.refresh.summarizer
        prompt = count_tokens(request.head) + count_tokens(request.data)
        price = prompt + request.room
        async with refresh.gate:
            over = refresh.max_tokens is not None and refresh.spent + price > refresh.max_tokens
            if refresh.is_unreachable or over or summarizer is None:
                return None
            refresh.spent += price
            if refresh.dry_run:
                self.result.pay(Cost(1, prompt, request.room))
                return None
            try:
                reply, cost = await summarizer.write(request)
            except (ContentError, Unavailable) as error:
                refresh.is_unreachable |= isinstance(error, Unavailable)
                self.result.pay(error.spent)
                return None
        refresh.spent += cost.prompt_tokens + cost.completion_tokens - price
        self.result.pay(cost)
        if sources := sorted(cluster.sources(self.snapshot)):
            first, later = sources[0], np.array(sources[1:], "<u4").tobytes()
            answer = rows.answers_row(first, _JOURNALED + key, [reply, *note], *cost, sources=later)
            keep = partial(journal_answer, group=self.snapshot.group, answer=answer, sources=sources)
            refresh.store.append([self.snapshot.group], keep)
        return reply


def journal_answer(at: Appending, *, group: str, answer: AnswerRow, sources: Sequence[int]) -> None:
    """Store an answer, unless a source episode was withdrawn (R25)."""
    heads = at.rows(reads.EPISODE_HEADS_AT, group, sources)
    if {row.sequence for row in heads if row.state != kinds.WITHDRAWN}.issuperset(sources):
        at.put(kinds.ANSWERS, group, answer)


def _published(
    at: Appending, *, snapshot: Snapshot, communities: Sequence[Community], run: CommunityRunRow
) -> bool:
    """Publish a run and drop runs older than its predecessor; return False if the run is void."""
    group = snapshot.group
    if detection.withdrawals(at.rows(kinds.OPERATIONS.all, group)) != snapshot.withdrawals:
        return False
    if newest_run(at, group) != snapshot.parent:
        return False
    at.put(kinds.COMMUNITY_RUNS, group, run)
    for community in communities:
        at.put(kinds.COMMUNITIES, group, rows.community_row(community))
    for old in detection.runs(at, group)[: -(_STORED_RUNS - 1)]:
        at.drop(kinds.COMMUNITY_RUNS, group, (old.run,))
        for row in at.rows(reads.COMMUNITIES_OF_RUN, group, [old.run]):
            at.drop(kinds.COMMUNITIES, group, (row.run, row.id))
    return True
