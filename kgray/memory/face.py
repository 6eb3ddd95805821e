"""`AsyncMemory`: one store and the methods on it; reads and writes name their group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace as replaced
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

from kgray.communities.found import Clustering, clustered
from kgray.domain import times
from kgray.domain.graph import Hit
from kgray.domain.ontology import Ontology, shipped
from kgray.domain.records import check_group
from kgray.errors import InputError, NoSpace, NotFound, SettingsError
from kgray.ingest.local import LocalIngest, last_sequences
from kgray.io.intake.drafts import FIELDS, Defaults, Refusal, draft_from
from kgray.io.interchange import exporting, formats
from kgray.io.interchange.importing import ImportReport, import_from
from kgray.memory.admin import AsyncAdmin
from kgray.memory.answers import no_group
from kgray.memory.communities import AsyncCommunities
from kgray.memory.correcting import Corrections
from kgray.memory.ingesting import Item, Report, Submission
from kgray.memory.moments import When, instant_of
from kgray.memory.options import AskOptions, GraphitiOptions, SearchOptions, SelectionOptions
from kgray.models.prompting.tokens import Counter, count_tokens
from kgray.ports import Answerer, Embedder, GraphView, SearchScope, Store, Summarizer
from kgray.ports import Reranker as RerankingModel
from kgray.ports.ingest import Ingest, IngestOutcome, OnStep, OnWait, Stop, ignore, never
from kgray.search import Context, Filters, Method, Query, Ranking, Recipe, Reranker, Searcher, Template
from kgray.search import context as build_context
from kgray.settings import PipelineSettings
from kgray.storage import ledger
from kgray.storage.ledger import retry_failed
from kgray.system.spans import span

if TYPE_CHECKING:
    from kgray.ingest.calls import OnCall, OnStage, Parts
    from kgray.memory.asking import MemoryQuestion
    from kgray.search.answering import Answered, OnText


_MOMENTS = ("as_of", "known_at", "said_after", "said_before")
_LISTS = ("scopes", "seeds", "methods")


class AsyncMemory(Corrections):
    """A temporal knowledge graph of messages, texts and records; its methods are awaited.

    `kgray.open_async` and `kgray.connect_async` return it; close it with `async with` or `close`.
    `kgray.Memory` has the same methods, which block.
    """

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
        ontology    returns the declared relations: the shipped relations and the relations of the settings
        """
        super().__init__(store)
        self._build_embedder, self._reranker = embedder, reranker
        self.on_wait: OnWait = ignore  # called with a line when a method waits for another process
        # Called with the seconds of each stage of local ingestion, and the outcome of each model call.
        self.on_stage: OnStage = lambda *_: None
        self.on_call: OnCall = lambda *_: None
        self.clustering: Clustering = clustered  # where communities are found: here, or on Ray
        self.groups_at_once = 1
        self._build, self._answerer, self._summarizer = build, answerer, summarizer
        self.ontology = ontology
        self.runtime: Ingest = ingest or LocalIngest(
            store, lambda: replaced(self.parts, watch=self.on_stage, on_call=self.on_call)
        )
        self.data, self._previous = data, previous

    @cached_property
    def embedder(self) -> Embedder:
        """The embedder, built at first use. Raises StoreError where the store's vectors are another's."""
        return self._build_embedder()

    def check_embedder(self) -> None:
        """Raise StoreError or SettingsError where there is no embedder for the store: before a change."""
        _ = self.embedder

    @cached_property
    def communities(self) -> AsyncCommunities:
        """The communities of the groups: list, get, refresh."""
        return AsyncCommunities(self)

    @cached_property
    def admin(self) -> AsyncAdmin:
        """Checks, repairs, keys and schedules; not over HTTP."""
        return AsyncAdmin(self)

    def summarizer(self) -> Summarizer | None:
        """Return the model that summarises communities; None where no model is configured."""
        return self._summarizer() if self._summarizer is not None else None

    @cached_property
    def _searcher(self) -> Searcher:
        return Searcher(self.store, self.embedder, self._reranker, self.ontology)

    @cached_property
    def parts(self) -> Parts:
        """The parts of a run, built at first use. Raises SettingsError."""
        return self._build()

    async def add(
        self, text: object, *, group: str, at: When | None = None, speaker: str | None = None,
        source: str = "default", kind: str | None = None,
        id: str | None = None,  # noqa: A002 - the field's name in every input format
        metadata: Mapping[str, Any] | None = None, replace: bool = False, again: bool = False,
    ) -> Report:  # fmt: skip
        """Accept one episode and ingest what is pending.

        text    a text; with kind "json" any JSON value, with "triples" the list of triples
        at      when it was said; None = now, fixed at first acceptance
        id      the client's id; an id of other content is an error, unless `replace` retracts that content
        again   accept it although it was retracted before
        Raises InputError for anything that is refused; nothing is accepted then.
        """
        row = dict(metadata or {})
        if clash := sorted(FIELDS & row.keys()):
            raise InputError(f"metadata cannot name {clash[0]!r}: it is a field of its own", field="metadata")
        row |= {"triples" if kind == "triples" else "text": text, "source": source}
        row |= {"at": at, "speaker": speaker, "kind": kind, "id": id}
        row = {name: value for name, value in row.items() if value is not None}
        report = await self.add_many([row], group=group, replace=replace, again=again)
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
        accepted_before = last_sequences(self.store)
        submission = Submission(self.store, replace=replace, again=again)
        try:
            for item in self._items(items, group):
                submission.take(item)
                if stop():
                    break
            stopped = stop()
            submission.finish(complete=not stopped)
        except NoSpace as error:
            if not submission.counts["accepted"]:
                raise
            return submission.report(IngestOutcome(stopped=True, reason=str(error)))
        if accept_only or stopped:
            return submission.report(IngestOutcome(stopped=stopped))
        options: dict[str, Any] = {"stop": stop, "on_step": on_step, "on_wait": self.on_wait}
        return submission.report(
            await self.runtime.carry_out(submission.queued, before=accepted_before, **options)
        )

    async def ingest(self, *, on_step: OnStep = ignore, stop: Stop = never) -> Report:
        """Ingest everything that is pending, waiting for another process that does."""
        self.check_embedder()
        outcome = await self.runtime.carry_out(None, stop=stop, on_step=on_step, on_wait=self.on_wait)
        return Report(**outcome.told())

    async def retry(
        self, *, group: str | None = None, episodes: Sequence[str] = (),
        on_step: OnStep = ignore, stop: Stop = never,
    ) -> Report:  # fmt: skip
        """Retry failed episodes: all, or those with these ids (kgray's or the client's); and held groups."""
        if group is not None:
            check_group(group)
        self.check_embedder()
        count = retry_failed(self.store, group, episodes, now=times.now())
        ledger.end_pause(self.store, group)
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
        ranking = await self.explain(
            query, group=group, as_of=as_of, known_at=known_at, said_after=said_after,
            said_before=said_before, scopes=scopes, limit=limit, recipe=recipe, filters=filters,
            methods=methods, reranker=reranker, centre=centre, seeds=seeds, any_time=any_time,
            recent=recent, depth=depth, mmr_lambda=mmr_lambda,
        )  # fmt: skip
        return [*ranking.hits]

    async def explain(self, query: str, *, group: str, **options: Unpack[SearchOptions]) -> Ranking:
        """Return the hits of a search with the signals that ranked them, and the omitted hits."""
        selection, view = self._query(query, group, options)
        with span("kgray search"):
            return await self._searcher.ranking(selection, view=view)

    async def context(
        self, query: str, *, group: str, tokens: int = 1500, limit: int | None = None,
        count: Counter = count_tokens, template: Template = "kgray", **options: Unpack[SelectionOptions],
    ) -> Context:  # fmt: skip
        """Return a text to put into a prompt.

        tokens      the most tokens of the text
        limit       the most hits to consider; None = as many as may fit, at most 1,000
        count       returns the tokens of a text as your model counts them; the default is an estimate
        template    kgray, or paper: the constructor of Zep's appendix, facts and entities alone
        """
        bounds: dict[str, Any] = {"tokens": tokens, "limit": limit, "count": count, "template": template}
        selection, view = self._query(query, group, options)
        with span("kgray context"):
            return await build_context(self._searcher, selection, view=view, **bounds)

    def _query(
        self, text: str, group: str, options: Mapping[str, Any]
    ) -> tuple[Query, Callable[[], GraphView] | None]:
        """Return the query, and a function that makes the view of a past `known_at`."""
        fields = dict(options)
        for name in _MOMENTS:
            if fields.get(name) is not None:
                fields[name] = times.given(fields[name], name)[0]
        fields |= {name: tuple(fields[name]) for name in _LISTS if fields.get(name) is not None}
        # A range of reference times is a filter.
        said_range = fields.pop("said_after", None), fields.pop("said_before", None)
        filters = fields.pop("filters", None) or Filters()
        filters = filters if said_range == (None, None) else replaced(filters, said=said_range)
        query = Query(text=text, group=group, filters=filters, **fields)
        past = query.known_at
        return query, None if past is None else partial(self.view_at, group, past)

    async def ask(
        self, question: str, *, group: str, on_text: OnText | None = None, **options: Unpack[AskOptions]
    ) -> Answered:  # fmt: skip
        """Return a model's answer from the group's memory, with citations; it writes nothing.

        on_text     takes the pieces of the answer as they arrive
        No model is asked where the memory has no hit. Raises SettingsError: no model is configured;
        InputError: a bound is too small for an answer; Refused, InvalidAnswer, Unavailable.
        """
        return await self._question(question, group, options).answered(on_text or (lambda _: None))

    async def suggest(
        self, about: str, *, group: str, limit: int = 4, **options: Unpack[SelectionOptions]
    ) -> list[str]:  # fmt: skip
        """Return up to `limit` questions about a subject that the memory can answer; one call of the model.

        Errors: as for `ask`. The list is empty where the memory has no hit.
        """
        question = self._question(about, group, options | {"max_calls": 1, "suggest": limit})
        context = await question.context()
        return await question.suggested(context.lines if context.hits else (), limit)

    @property
    def can_answer(self) -> bool:
        """Return whether a model that answers is configured."""
        try:
            return self._answerer is not None and self._answerer() is not None
        except SettingsError:
            return False

    def answerer(self) -> Answerer:
        """Return the model that answers. Raises InputError, SettingsError where there is none."""
        if self._answerer is None:
            raise InputError("this memory was opened without a model that answers")
        return self._answerer()

    def _question(self, question: str, group: str, options: Mapping[str, Any]) -> MemoryQuestion:
        from kgray.memory.asking import AnswerOptions, MemoryQuestion  # other reads need no prompts
        from kgray.memory.spending import Spending

        selection = dict(options)
        chosen = AnswerOptions.parted(selection)
        spending = Spending(self.answerer(), chosen.max_calls, chosen.max_tokens)
        self.check_embedder()
        return MemoryQuestion(self, spending, question, group, chosen, selection)

    async def export(
        self, path: str | Path, *, to: str, group: str,
        as_of: When | None = None, known_at: When | None = None, stop: Stop = never,
    ) -> formats.Report:  # fmt: skip
        """Write a group in another tool's format (docs/interchange.md); the same graph gives the same bytes.

        path    a file that is not there yet; for formats of several files a folder that is new or empty
        as_of   only facts that hold then; None = all spans
        stop    if it returns True, the export leaves nothing and raises Stopped
        Raises NotFound; InputError for an unknown format, or where something is at the path; StoreError.
        """
        moments = {"as_of": instant_of(as_of, "as_of"), "known_at": instant_of(known_at, "known_at")}
        if nothing := no_group(self.store, check_group(group)):
            raise NotFound(nothing)
        return exporting.export(self.store, group, to, Path(path), stop=stop, **moments)

    async def import_from(
        self, path: str | Path, *, form: str, group: str, dry_run: bool = False, replace: bool = False,
        on_step: OnStep = ignore, stop: Stop = never, **graphiti: Unpack[GraphitiOptions],
    ) -> ImportReport:  # fmt: skip
        """Take over the group of another program from its files (docs/interchange.md); no model reads facts.

        path        of files; the address of a Neo4j server for graphiti
        form        graphrag, lightrag, cogx, zep, mem0, graphiti; parquet restores a whole group by its name
        dry_run     read and count; accept nothing
        replace     replace episodes that were imported before and have changed
        Raises InputError for files that cannot be read, naming the file; accepted episodes stay.
        """
        if form == "parquet":
            from kgray.io.interchange.read_parquet import restore  # it needs pyarrow

            if replace:
                raise InputError("an import of parquet replaces nothing: leave out replace", field="replace")
            return restore(Path(path), self.store, check_group(group), dry_run=dry_run)
        add = None if dry_run else partial(self.add_many, replace=replace, on_step=on_step, stop=stop)
        if form == "graphiti":
            from kgray.runtime.wiring import needed_by

            with needed_by("kgray import graphiti", "neo4j"):
                from kgray.io.interchange.read_graphiti import import_graphiti
            return await import_graphiti(str(path), check_group(group), add, **graphiti)
        if graphiti:
            raise InputError(f"{', '.join(graphiti)}: only for graphiti", field=next(iter(graphiti)))
        return await import_from(Path(path), form, check_group(group), add)

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

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
