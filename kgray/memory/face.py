"""`Memory`, the public class: one store and the methods on it; those that read or write name their group."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace as replaced
from functools import cached_property, partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from kgray import ledger, times
from kgray.communities.found import Clustering, clustered
from kgray.communities.refresh import OnGroup, Refresh, Refreshed
from kgray.derivation.repair import differences, repaired
from kgray.errors import InputError, KgrayError, NoSpace, NotFound, SettingsError
from kgray.graph import Hit
from kgray.intake.drafts import FIELDS, Defaults, Refusal, draft_from
from kgray.interchange import exporting, formats
from kgray.interchange.importing import ImportReport, import_from
from kgray.ledger import retry
from kgray.memory.access import Access
from kgray.memory.answers import no_group
from kgray.memory.correcting import Corrections
from kgray.memory.ingesting import Item, LocalIngest, Report, Submission, foreseen, last_sequences
from kgray.memory.reads import When, instant_of
from kgray.memory.schedules import Schedules
from kgray.ontology import Ontology, shipped
from kgray.ports import Answerer, Embedder, GraphView, SearchScope, Store, Summarizer, at_one_moment
from kgray.ports import Reranker as RerankingModel
from kgray.ports.ingest import Ingest, IngestOutcome, OnStep, OnWait, Stop, ignore, never
from kgray.prompting.tokens import Counter, count_tokens
from kgray.records import check_group
from kgray.search import Context, Filters, Method, Query, Ranking, Recipe, Reranker, Searcher, Template
from kgray.search import context as build_context
from kgray.settings import PipelineSettings
from kgray.spans import span

if TYPE_CHECKING:
    from kgray.ingest.parts import OnCall, OnStage, Parts
    from kgray.ingest.preview import Preview
    from kgray.memory.asking import MemoryQuestion
    from kgray.memory.ontology_check import OntologyFault
    from kgray.memory.ontology_suggest import RelationSuggestion
    from kgray.search.answering import Answered, OnText


_MOMENTS = ("as_of", "known_at", "said_after", "said_before")
_LISTS = ("scopes", "seeds", "methods")


class BothWays(ABC):
    """Methods to await with `async with`, and the same ones blocking with `with`."""

    @abstractmethod
    def close(self) -> None:
        """Release what is held; idempotent."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __enter__(self) -> Blocking:
        return Blocking(self)

    def __exit__(self, *_: object) -> None:
        self.close()


class Memory(Corrections, BothWays):
    """A temporal knowledge graph of what was said; use it `with` (blocking) or `async with`."""

    def __init__(
        self, store: Store, embedder: Callable[[], Embedder], build: Callable[[], Parts], *,
        ingest: Ingest | None = None, data: Path | None = None,
        previous: int = PipelineSettings().previous_episodes,
        answerer: Callable[[], Answerer] | None = None,
        summarizer: Callable[[], Summarizer | None] | None = None, reranker: RerankingModel | None = None,
        ontology: Callable[[], Ontology] = shipped,
    ) -> None:  # fmt: skip
        """Take over an open store.

        embedder    returns the embedder of its vectors, or raises where there is none; called at first need
        build   returns the `Parts` of a run; called once, when something is to be ingested
        ingest  the runtime that carries out what is pending; None = this process
        data    the data folder: removals also delete texts that backfill runs keep there
        previous    how many episodes are the previous context of another (pipeline.previous_episodes)
        answerer, summarizer    return the model that answers, and that summarises communities; None = none
        ontology    returns the declared relations: the shipped ones with those of the settings
        """
        super().__init__(store)
        self._build_embedder, self._reranker = embedder, reranker
        self.on_wait: OnWait = ignore  # called with a line when a method waits for another process
        # Called with the seconds of each stage of ingestion here, and with what each call of a model came to.
        self.on_stage: OnStage = lambda *_: None
        self.on_call: OnCall = lambda *_: None
        self.clustering: Clustering = clustered  # where communities are found: here, or on Ray
        self.groups_at_once = 1
        self._build, self._answerer, self._summarizer = build, answerer, summarizer
        self._ontology = ontology
        self.runtime: Ingest = ingest or LocalIngest(
            store, lambda: replaced(self.parts, watch=self.on_stage, on_call=self.on_call)
        )
        self._data, self._previous = data, previous

    @cached_property
    def embedder(self) -> Embedder:
        """The embedder, built at first use. Raises StoreError where the store's vectors are another's."""
        return self._build_embedder()

    def check_embedder(self) -> None:
        """Raise StoreError or SettingsError where there is no embedder for the store: before a change."""
        _ = self.embedder

    def vectors(self) -> dict[str, Any]:
        """Return the embedder of the store's vectors: its name, dimensions, and fault.

        fault   why the settings' embedder cannot take its place, in one line; None = it can
        """
        fault = None
        try:
            self.check_embedder()
        except KgrayError as error:
            fault = str(error)
        return {"name": self.store.embedder, "dimensions": self.store.dimensions, "fault": fault}

    @cached_property
    def _searcher(self) -> Searcher:
        return Searcher(self.store, self.embedder, self._reranker, self._ontology)

    @cached_property
    def parts(self) -> Parts:
        """The parts of a run, built at first use. Raises SettingsError."""
        return self._build()

    @property
    def access(self) -> Access:
        """The keys of the HTTP server, and its audit log."""
        return Access(self.store)

    @property
    def schedules(self) -> Schedules:
        """When communities are refreshed."""
        return Schedules(self.store)

    async def add(
        self, text: object, *, group: str, at: When | None = None, speaker: str | None = None,
        source: str = "default", kind: str | None = None,
        id: str | None = None,  # noqa: A002 - the field's name in every input format
        metadata: Mapping[str, Any] | None = None, replace: bool = False, again: bool = False,
    ) -> Report:  # fmt: skip
        """Accept one episode and ingest what is pending.

        text    a text; with kind "json" any JSON value, with "triples" the list of triples
        at      when it was said; None = now, fixed at first acceptance
        id      yours; one that other content has is an error, unless `replace`: then that is retracted
        again   accept it although it was retracted before
        Raises InputError for anything that is refused; nothing is accepted then.
        """
        row = dict(metadata or {})
        if clash := sorted(FIELDS & row.keys()):
            raise InputError(f"metadata cannot name {clash[0]!r}: it is a field of its own", field="metadata")
        row |= {"triples" if kind == "triples" else "text": text, "group": group, "source": source}
        row |= {"at": at, "speaker": speaker, "kind": kind, "id": id}
        draft = draft_from({key: value for key, value in row.items() if value is not None})
        report = await self.add_many([draft], replace=replace, again=again)
        for refusal in report.refusals:
            raise InputError(refusal.reason, field=refusal.field)
        return report

    async def add_many(
        self, items: Iterable[Item | Mapping[str, Any]], *, group: str | None = None,
        replace: bool = False, again: bool = False, accept_only: bool = False,
        on_step: OnStep = ignore, stop: Stop = never,
    ) -> Report:  # fmt: skip
        """Accept drafts, rows or items of the intake, then ingest until nothing is pending.

        group        for rows that name none. A row that cannot be used is in the report's refusals
        replace      replace episodes whose id is taken by other content
        again        accept what was retracted, too (R19); else it is a duplicate
        accept_only  do not ingest
        """
        self.check_embedder()
        before = last_sequences(self.store)
        taken = Submission(self.store, replace=replace, again=again)
        try:
            for item in self._items(items, group):
                taken.take(item)
                if stop():
                    break
            stopped = stop()
            taken.finish(complete=not stopped)
        except NoSpace as error:
            if not taken.counts["accepted"]:
                raise
            return taken.report(IngestOutcome(stopped=True, reason=str(error)))
        if accept_only or stopped:
            return taken.report(IngestOutcome(stopped=stopped))
        how: dict[str, Any] = {"stop": stop, "on_step": on_step, "on_wait": self.on_wait}
        return taken.report(await self.runtime.carry_out(taken.queued, before=before, **how))

    async def ingest(self, *, on_step: OnStep = ignore, stop: Stop = never) -> Report:
        """Ingest everything that is pending, waiting for another process that does."""
        self.check_embedder()
        done = await self.runtime.carry_out(None, stop=stop, on_step=on_step, on_wait=self.on_wait)
        return Report(**done.told())

    def check(self, items: Iterable[Item], *, replace: bool = False) -> Report:
        """Return what accepting would refuse, with taken ids unless they replace; accepts nothing."""
        self.check_embedder()
        found = foreseen(self.store, items, replace=replace)
        return Report(refusals=tuple(one for one in found if isinstance(one, Refusal)))

    def preview(self, *, replace: bool = False, again: bool = False) -> Preview:
        """Return a `Preview`: its `rows(draft)` are the changes that a draft would make."""
        from kgray.ingest.preview import Preview  # a process that only reads does not import them

        return Preview(self.parts, replace=replace, again=again)

    async def retry(
        self, *, group: str | None = None, episodes: Sequence[str] = (),
        on_step: OnStep = ignore, stop: Stop = never,
    ) -> Report:  # fmt: skip
        """Retry failed episodes: all, or those with these ids (kgray's or the client's); and held groups."""
        if group is not None:
            check_group(group)
        self.check_embedder()
        count = retry(self.store, group, episodes, now=times.now())
        ledger.try_again(self.store, group)
        report = await self.ingest(on_step=on_step, stop=stop)
        return replaced(report, accepted=count)

    async def search(
        self, query: str, *, group: str, as_of: When | None = None, known_at: When | None = None,
        said_after: When | None = None, said_before: When | None = None,
        scopes: Sequence[SearchScope] = (), limit: int = 10, recipe: str | Recipe = "hybrid",
        filters: Filters | None = None, methods: Sequence[Method] | None = None,
        reranker: Reranker | None = None, centre: str | None = None, seeds: Sequence[str] = (),
        any_time: bool = False, recent: int | None = None, depth: int | None = None,
        mmr_lambda: float | None = None,
    ) -> list[Hit]:  # fmt: skip
        """Return ranked hits, best first; facts that hold at `as_of` (now), as known at `known_at` (now).

        said_after, said_before     episodes said at this time or later; before it. as_of hides none (R5)
        The other arguments are the fields of kgray.search.Query.
        """
        found = await self.explain(
            query, group=group, as_of=as_of, known_at=known_at, said_after=said_after,
            said_before=said_before, scopes=scopes, limit=limit, recipe=recipe, filters=filters,
            methods=methods, reranker=reranker, centre=centre, seeds=seeds, any_time=any_time,
            recent=recent, depth=depth, mmr_lambda=mmr_lambda,
        )  # fmt: skip
        return [*found.hits]

    async def explain(self, query: str, **how: Any) -> Ranking:  # noqa: ANN401 - the arguments of `search`
        """Return the hits of a search with the signals that ranked them, and what was left out."""
        asked, view = self._query(query, **how)
        with span("kgray search"):
            return await self._searcher.ranking(asked, view=view)

    async def context(
        self, query: str, *, group: str, tokens: int = 1500, limit: int | None = None,
        count: Counter = count_tokens, template: Template = "kgray",
        **how: Any,  # noqa: ANN401 - the other arguments of `search`
    ) -> Context:  # fmt: skip
        """Return the text to put into a prompt, at most `tokens` long.

        limit   hits that are looked at; None = as many as the budget may hold, at most 1,000
        count   the tokens of a text as your model counts them; by default an estimate
        template    kgray, or paper: the constructor of Zep's appendix, facts and entities alone
        The other arguments are those of `search`: as_of, known_at, scopes, filters, ...
        """
        asked, view = self._query(query, group=group, **how)
        bounds: dict[str, Any] = {"tokens": tokens, "limit": limit, "count": count, "template": template}
        with span("kgray context"):
            return await build_context(self._searcher, asked, view=view, **bounds)

    def _query(self, text: str, **how: Any) -> tuple[Query, Callable[[], GraphView] | None]:  # noqa: ANN401
        """Return the query, and what makes the view of a past one. how: the arguments of `search`."""
        told = {name: how[name] for name in _MOMENTS if how.get(name) is not None}
        how |= {name: times.given(moment, name)[0] for name, moment in told.items()}
        how |= {name: tuple(how[name]) for name in _LISTS if how.get(name) is not None}
        # The range of reference times that is asked for is a filter.
        said, filters = (how.pop("said_after", None), how.pop("said_before", None)), how.pop("filters", None)
        filters = filters or Filters()
        filters = filters if said == (None, None) else replaced(filters, said=said)
        asked = Query(text=text, filters=filters, **how)
        past = asked.known_at
        return asked, None if past is None else partial(self._view_at, asked.group, past)

    async def ask(
        self, question: str, *, group: str, on_text: OnText | None = None, **how: Any,  # noqa: ANN401
    ) -> Answered:  # fmt: skip
        """Return a model's answer from what the group's memory holds, with citations; it writes nothing.

        on_text     takes the pieces of the answer as they arrive
        how         the fields of `kgray.memory.asking.AnswerOptions` (mode, history, suggest, ...), and what
                    `context` takes: tokens, as_of, known_at, scopes, filters, ...
        Where nothing is found, no model is asked. Raises SettingsError: there is none; InputError: a bound
        pays for no answer; Refused, InvalidAnswer, Unavailable.
        """
        return await self._question(question, group, how).answered(on_text or (lambda _: None))

    async def suggest(
        self, about: str, *, group: str, limit: int = 4, **how: Any,  # noqa: ANN401
    ) -> list[str]:  # fmt: skip
        """Return up to `limit` questions that the memory can answer about something; one call of the model.

        how, and what it raises: as of `ask`. None where nothing is found.
        """
        question = self._question(about, group, how | {"max_calls": 1, "suggest": limit})
        context = await question.context()
        return await question.suggested(context.lines if context.hits else (), limit)

    @property
    def can_answer(self) -> bool:
        """Whether a model that answers is configured."""
        try:
            return self._answerer is not None and self._answerer() is not None
        except SettingsError:
            return False

    def answerer(self) -> Answerer:
        """Return the model that answers. Raises InputError, SettingsError where there is none."""
        if self._answerer is None:
            raise InputError("this memory was opened without a model that answers")
        return self._answerer()

    def _question(self, question: str, group: str, how: dict[str, Any]) -> MemoryQuestion:
        from kgray.memory.asking import AnswerOptions, MemoryQuestion  # other reads need no prompts
        from kgray.memory.spending import Spending

        options = AnswerOptions.parted(how)
        spending = Spending(self.answerer(), options.max_calls, options.max_tokens)
        self.check_embedder()
        return MemoryQuestion(self, spending, question, group, options, how)

    async def refresh_communities(
        self, groups: Sequence[str] = (), *, profiles: bool = False, max_tokens: int | None = None,
        on_group: OnGroup = lambda *_: None, **how: Any,  # noqa: ANN401 - flags of `Refresh`
    ) -> dict[str, Refreshed]:  # fmt: skip
        """Find, name and summarise the communities of these groups (none: of all); return what was done.

        profiles    have the model write of entities with 5 facts or more, too
        max_tokens  of all groups together, where a model is configured; the rest is written without it
        how         of `Refresh`: cold = from nothing, and not from the current run; due = only groups of
                    which a tenth is new since; dry_run = say which calls it would make, and publish nothing
        Groups without news cost nothing. Raises NotFound, Unavailable, SettingsError.
        """
        if max_tokens is not None and max_tokens < 1:
            raise InputError(f"max_tokens is {max_tokens}: use 1 or more", field="max_tokens")
        for group in groups:
            if missing := no_group(self.store, check_group(group)):
                raise NotFound(missing)
        embedder, chosen = self.embedder, list(dict.fromkeys(groups)) or list(self.store.heads())
        summarizer = self._summarizer() if self._summarizer is not None else None
        if profiles and summarizer is None:
            raise SettingsError(
                'profiles are written by a model: set model.backend = "openai" with model.base_url and '
                "model.name; without one, `kgray history` and `kgray entities` make them of facts."
            )
        refresh = Refresh(
            store=self.store,
            embedder=embedder,
            summarizer=summarizer,
            profiles=profiles,
            max_tokens=max_tokens,
            cluster=self.clustering,
            **how,
        )
        return await refresh.groups(chosen, at_once=self.groups_at_once, on_group=on_group)

    async def relation_suggestions(self, *, group: str, limit: int = 50) -> list[RelationSuggestion]:
        """Return what a person may declare of relation names, because models answered alike of them.

        What most answers speak for comes first; nothing that the ontology answers already. It passes once
        over the group's evidence and verdicts. Raises InputError for a limit below 1.
        """
        from kgray.memory.ontology_suggest import suggestions  # other reads need no ontology

        if limit < 1:
            raise InputError(f"limit is {limit!r}: use 1 or more", field="limit")
        check_group(group)
        ontology = self._ontology()
        return at_one_moment(self.store, lambda: suggestions(self.store, group, ontology, limit=limit))

    async def ontology_faults(self) -> list[OntologyFault]:
        """Return the contradictions in what the settings declare of relations and types, notes last."""
        from kgray.memory.ontology_check import faults_of

        return faults_of(self._ontology())

    async def repair(self, group: str) -> list[str]:
        """Derive a group anew from its records, and store it; return what was done, in lines."""
        if missing := no_group(self.store, check_group(group)):
            raise NotFound(missing)
        found = repaired(self.store, group)
        if group in ledger.held(self.store):
            ledger.release(self.store, group)
        return found

    async def verify(self, group: str) -> list[str]:
        """Compare the stored index with a derivation from the records; one line for each difference."""
        return differences(self.store, check_group(group))

    async def export(
        self, path: str | Path, *, to: str, group: str,
        as_of: When | None = None, known_at: When | None = None,
    ) -> formats.Report:  # fmt: skip
        """Write a group in another tool's format (docs/interchange.md); the same graph gives the same bytes.

        path    a file that is not there yet; for formats of several files a folder that is new or empty
        as_of   only facts that hold then; None = all spans
        Raises NotFound; InputError for an unknown format, or where something is at the path; StoreError.
        """
        moments = {"as_of": instant_of(as_of, "as_of"), "known_at": instant_of(known_at, "known_at")}
        if nothing := no_group(self.store, check_group(group)):
            raise NotFound(nothing)
        return exporting.export(self.store, group, to, Path(path), **moments)

    async def import_from(
        self, path: str | Path, *, form: str, group: str, dry_run: bool = False, replace: bool = False,
        on_step: OnStep = ignore, stop: Stop = never,
    ) -> ImportReport:  # fmt: skip
        """Take over the group of another program from its files (docs/interchange.md); no model reads facts.

        form        graphrag, lightrag, cogx, zep, mem0
        dry_run     read and count; accept nothing
        replace     replace episodes that were imported before and have changed
        Raises InputError for files that cannot be read, naming the file; what was accepted before stays.
        """
        add = partial(self.add_many, replace=replace, on_step=on_step, stop=stop)
        return await import_from(Path(path), form, check_group(group), None if dry_run else add)

    def _items(self, items: Iterable[Item | Mapping[str, Any]], group: str | None) -> Iterator[Item]:
        for number, item in enumerate(items, 1):
            try:
                yield draft_from(item, Defaults(group=group)) if isinstance(item, Mapping) else item
            except InputError as error:
                yield Refusal(file="<items>", line=number, field=error.field, reason=str(error))

    def close(self) -> None:
        """Release the store; idempotent."""
        self._views.clear()
        self.runtime.close()
        self.store.close()


class Blocking:
    """The methods of a Memory, blocking; not for use inside a running event loop."""

    def __init__(self, memory: object) -> None:
        self._memory = memory

    def __dir__(self) -> list[str]:
        return [name for name in dir(self._memory) if not name.startswith("_")]

    def __getattr__(self, verb: str) -> Any:  # noqa: ANN401 - whatever a Memory has
        """Return the method, as a call that blocks until it is done; anything else as it is."""
        method = getattr(self._memory, verb)
        if not callable(method):
            return method

        @wraps(method)
        def run(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever the verb takes and gives
            answer = method(*args, **kwargs)
            return asyncio.run(answer) if asyncio.iscoroutine(answer) else answer

        return run
