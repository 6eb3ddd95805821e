"""The memory for agents by the Model Context Protocol: tools, whose errors contain advice."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial, wraps
from typing import Annotated, Any, Literal

from anyio import to_thread
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from kgray import __version__
from kgray.domain import times
from kgray.domain.graph import Hit
from kgray.domain.json_form import as_json
from kgray.domain.records import Draft, check_group
from kgray.errors import InputError, KgrayError
from kgray.io.intake.drafts import Defaults, draft_from
from kgray.memory import AsyncMemory
from kgray.memory.background import Background
from kgray.search import Filters, Method, Reranker, Template
from kgray.storage.ledger import Acceptance, accept, sequences_of

INSTRUCTIONS = (
    "Long-term memory. Call get_context or search_memory before you answer about the past or about people. "
    "Call add_memory for decisions, preferences, facts and dates that should outlive this conversation."
)
Runs = Callable[..., Awaitable[Any]]  # runs a method of the memory with its arguments in a thread


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The access of one connection.

    call: like read, for blocking functions; ask: takes a question and the arguments of `Memory.ask`; key: the
    id of the caller's key, "" = none; count: counts a call by tool and outcome
    """

    memory: AsyncMemory
    group: str
    read: Runs
    change: Runs
    call: Runs
    ask: Runs
    background: Background
    accept: Callable[[list[Draft]], Awaitable[list[Acceptance]]]
    key: str = ""
    count: Callable[[str, str], None] = lambda _tool, _outcome: None


class Line(BaseModel):
    """A fact, entity or message."""

    id: str
    kind: str  # fact, entity, episode or community; in memory_status: opened, changed or ended
    text: str
    since: str | None = None
    until: str | None = None
    number: int | None = None


class Text(BaseModel):
    """A text to read."""

    text: str
    tokens: int


class Answer(BaseModel):
    """An answer; found: false = the memory has no answer. A source has its number in the text."""

    answer: str
    found: bool
    sources: list[Line]
    suggestions: list[str] = []
    general_knowledge: bool = False
    keywords: dict[str, list[str]] | None = None
    reports: dict[str, int] | None = None


class Lines(BaseModel):
    """Results, best first or in order of time."""

    lines: list[Line]


class Added(BaseModel):
    """state: committed = in the graph; accepted = safe, not yet in it; failed; retracted = forgotten."""

    id: str
    state: str


class Message(BaseModel):
    """A message, word for word."""

    id: str
    at: str | None
    speaker: str | None
    text: str


class Messages(BaseModel):
    """Messages."""

    messages: list[Message]


class Status(BaseModel):
    """states: id -> state, of the requested ids. changed: facts opened, changed or ended after `since`."""

    pending: int
    failed: int
    failures: list[str]
    states: dict[str, str] = {}
    changed: list[Line] = []


class Forgotten(BaseModel):
    """Counts of the retraction or removal; absent: ids that do not exist."""

    messages: int
    facts_closed: int
    facts_reopened: int
    absent: list[str]


# Some clients send a list as a text, or as JSON in a text, which the SDK reads.
_LISTED = BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
Ids = Annotated[list[str], _LISTED, Field(max_length=100)]
Kinds = Annotated[list[Literal["fact", "entity", "episode", "community"]], _LISTED]
# A single argument, not nine: clients send the schemas of all tools to their model.
Options = Annotated[
    dict[str, Any],
    Field(
        description="recipe, methods, reranker, centre, seeds, recent, depth, mmr_lambda, any_time, "
        "relations, labels, sources, speakers, said_after, said_before"
    ),
]
AskedOptions = Annotated[
    dict[str, Any],
    Field(
        description="those of search_memory, and kinds, tokens, limit, history, history_tokens, general, "
        "form, level, min_rating, report_tokens, high, low, max_calls, max_tokens"
    ),
]
Moment = Annotated[str | None, Field(description="ISO 8601")]
ConnectionOf = Callable[[Context[Any]], Connection]
_ADVICE = {
    "NotFound": "Look for it with search_memory.",
    "Ambiguous": "Call again with one of these ids.",
    "InputError": "Correct the argument and call again.",
    "Unavailable": "Nothing is lost: try again later.",  # also of Overloaded
}


class _Server(MCPServer[Any]):
    """A server that reports wrong arguments in one line with advice, as the tools report errors."""

    async def call_tool(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - of the SDK
        try:
            return await super().call_tool(*args, **options)
        except ToolError as error:
            if not isinstance(error.__cause__, ValidationError):
                raise
            raise ToolError(f"{_fault(error.__cause__)}. {_ADVICE['InputError']}") from None


def build(
    connection_of: ConnectionOf, *, adds: bool = True, forgets: bool = True, asks: bool = False
) -> MCPServer[Any]:
    """Return a server. connection_of: the connection of a call; adds, forgets, asks: with these tools."""
    # Else the SDK installs a handler that renders each traceback, which blocks the event loop for a second.
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    server = _Server("kgray", instructions=INSTRUCTIONS, version=__version__, log_level="WARNING")
    tools = _Tools(connection_of)
    reads = "get_context search_memory get_history get_sources memory_status".split()
    chosen: list[tuple[Any, Any]] = [(getattr(tools, name), {"read_only_hint": True}) for name in reads]
    chosen += [(tools.ask_memory, {"read_only_hint": True})] * asks
    chosen += [(tools.add_memory, {"destructive_hint": False, "idempotent_hint": True})] * adds
    chosen += [(tools.forget, {"destructive_hint": True, "idempotent_hint": True})] * forgets
    for tool, hints in chosen:
        server.add_tool(
            _with_advice(tool, connection_of), annotations=ToolAnnotations(open_world_hint=False, **hints)
        )
    return server


def _with_advice(
    tool: Callable[..., Awaitable[Any]], connection_of: ConnectionOf
) -> Callable[..., Awaitable[Any]]:
    """Return a tool whose errors reach the model with advice."""

    @wraps(tool)
    async def run(*args: Any, ctx: Context[Any], **options: Any) -> Any:  # noqa: ANN401 - the tool's own
        count = connection_of(ctx).count
        try:
            answer = await tool(*args, ctx=ctx, **options)
        except KgrayError as error:
            count(tool.__name__, "error")
            names = (kind.__name__ for kind in type(error).__mro__)
            advice = next((_ADVICE[name] for name in names if name in _ADVICE), "Tell the user.")
            raise ToolError(f"{error}. {advice}") from None
        count(tool.__name__, "done")
        return answer

    return run


class _Tools:
    """The tools; models read their docstrings."""

    def __init__(self, connection_of: ConnectionOf) -> None:
        self.connection_of = connection_of

    async def _read(self, ctx: Context[Any], verb: str, *args: Any, **arguments: Any) -> Any:  # noqa: ANN401
        """Call a reading method of the memory on the connection's group; return its result."""
        connection = self.connection_of(ctx)
        method = getattr(connection.memory, verb)
        return await connection.read(method, *args, group=connection.group, **arguments)

    async def get_context(
        self, query: str, ctx: Context[Any], tokens: int = 1500, as_of: Moment = None,
        known_at: Moment = None,
        kinds: Kinds = [], template: Template = "kgray", options: Options = {},  # noqa: B006 - never changed
    ) -> Text:  # fmt: skip
        """Call at the start of a task: known facts about QUERY, ready to read, each line dated."""
        arguments: dict[str, Any] = {"tokens": tokens, "as_of": as_of, "known_at": known_at, "scopes": kinds}
        arguments |= {"template": template, **checked(options)}
        result = await self._read(ctx, "context", query, **arguments)
        return Text(text=result.text, tokens=result.tokens)

    async def ask_memory(
        self, question: str, ctx: Context[Any],
        mode: Literal["local", "keywords", "global", "drift"] = "local",
        as_of: Moment = None, known_at: Moment = None, suggest: int = 0,
        options: AskedOptions = {},  # noqa: B006 - never changed
    ) -> Answer:  # fmt: skip
        """Have a model answer QUESTION from this memory alone, with sources; slower than get_context.

        mode global: for questions about all of the memory, without as_of. suggest: N further questions.
        """
        connection = self.connection_of(ctx)
        arguments: dict[str, Any] = {"mode": mode, "as_of": as_of, "known_at": known_at, "suggest": suggest}
        arguments |= checked(options, _AskOptions)
        answer = await connection.ask(question, group=connection.group, **arguments)
        sources = [_line(hit).model_copy(update={"number": number}) for number, hit in answer.sources]
        return Answer(
            answer=answer.text, found=answer.found, sources=sources, suggestions=list(answer.suggestions),
            general_knowledge=answer.general, keywords=answer.keywords, reports=answer.reports,
        )  # fmt: skip

    async def search_memory(
        self, query: str, ctx: Context[Any], as_of: Moment = None, known_at: Moment = None,
        kinds: Kinds = [], limit: int = 10, options: Options = {},  # noqa: B006 - never changed
    ) -> Lines:  # fmt: skip
        """Find single facts, entities or messages. Without as_of: current facts. as_of: facts true then.

        known_at: the memory's knowledge at that time.
        """
        arguments: dict[str, Any] = {"as_of": as_of, "known_at": known_at, "scopes": kinds, "limit": limit}
        arguments |= checked(options)
        hits = await self._read(ctx, "search", query, **arguments)
        return Lines(lines=[_line(hit) for hit in hits])

    async def get_history(self, entity: str, ctx: Context[Any], known_at: Moment = None) -> Lines:
        """How facts about a person or thing changed. For 'since when', 'before', 'why did it change'."""
        result = await self._read(ctx, "history", entity, known_at=known_at)
        return Lines(lines=[_fact_line(fact) for fact in result.facts])

    async def get_sources(self, id: str, ctx: Context[Any]) -> Messages:  # noqa: A002 - the tool's argument
        """Return the messages behind a fact's id, verbatim: quote them."""
        messages = []
        for episode in (await self._read(ctx, "show", id)).episodes:
            at, id_ = _day(episode.reference_time), episode.client_id or episode.id
            messages.append(Message(id=id_, at=at, speaker=episode.speaker, text=episode.text))
        return Messages(messages=messages)

    async def memory_status(
        self, ctx: Context[Any], ids: Ids = [], since: Moment = None  # noqa: B006 - never changed
    ) -> Status:  # fmt: skip
        """Whether added messages are in the graph yet, failures with reasons, and changes `since` then."""
        counts = (await self._read(ctx, "status")).groups[self.connection_of(ctx).group]
        failures = await self._read(ctx, "failures")
        states = {id_: (await self._read(ctx, "episode", id_)).state for id_ in ids}
        changed: list[Line] = []
        if since is not None:
            diff = await self._read(ctx, "diff", from_known_at=since)
            for kind, facts in (
                ("opened", diff.opened),
                ("changed", [change.after for change in diff.changed]),
                ("ended", diff.ended),
            ):
                for fact in facts:
                    ends = {"since": as_json(fact.valid_at), "until": as_json(fact.invalid_at)}
                    changed.append(Line(id=fact.id, kind=kind, text=fact.text, **ends))
        lines = [f"{row.client_id or row.id or 'a correction'}: {row.message}" for row in failures[:10]]
        pending = counts.accepted + counts.extracted
        return Status(pending=pending, failed=counts.failed, failures=lines, states=states, changed=changed)

    async def add_memory(
        self, text: str, ctx: Context[Any], at: Moment = None, speaker: str | None = None,
        source: str | None = None, id: str | None = None, wait_s: float = 5,  # noqa: A002 - its argument
    ) -> Added:  # fmt: skip
        """Store facts that should outlive this conversation, in the user's words, a message for each call.

        `at` is when it was said, not when it happened. Do not add content that search has returned.
        """
        connection = self.connection_of(ctx)
        row = {"text": text, "at": at, "speaker": speaker, "source": source, "id": id}
        fields = {name: value for name, value in row.items() if value is not None}
        (acceptance,) = await connection.accept([draft_from(fields, Defaults(group=connection.group))])
        connection.background.appended(acceptance.status == "accepted")
        if acceptance.status == "conflict":
            raise InputError(f"{acceptance.reason}; leave the id out to keep both", field="id")
        if acceptance.retracted:
            return Added(id=acceptance.id, state="retracted")
        deadline = time.monotonic() + min(max(wait_s, 0.0), 30.0)
        while True:
            state = (await self._read(ctx, "episode", acceptance.id)).state
            if state not in ("accepted", "extracted") or time.monotonic() >= deadline:
                return Added(id=acceptance.id, state="accepted" if state == "extracted" else state)
            await connection.background.step(0.25)

    async def forget(
        self, ids: Ids, ctx: Context[Any],
        mode: Literal["retract", "remove"] = "retract", dry_run: bool = False,
    ) -> Forgotten:  # fmt: skip
        """Take messages out. retract: no longer believed, history keeps it. remove: erased with every trace.

        ids: of messages, from get_sources. dry_run: only counts existing messages. Ask the user first.
        """
        connection = self.connection_of(ctx)
        if dry_run:
            store, group = connection.memory.store, connection.group
            existing = [id_ for id_ in ids if await connection.call(sequences_of, store, group, [id_])]
            absent = [id_ for id_ in ids if id_ not in existing]
            return Forgotten(messages=len(existing), facts_closed=0, facts_reopened=0, absent=absent)
        note = connection.memory.admin.access.note
        await connection.call(note, connection.key, mode, connection.group, {"episodes": ids})
        verb = connection.memory.remove if mode == "remove" else connection.memory.retract
        counts = await connection.change(verb, group=connection.group, episodes=ids)
        return Forgotten.model_validate(as_json(counts) | {"messages": counts.episodes})


class _Options(BaseModel):
    """Rarely used options of a search; docs/searching.md explains each."""

    model_config = ConfigDict(extra="forbid")
    recipe: str = "hybrid"
    methods: list[Method] | None = None
    reranker: Reranker | None = None
    centre: str | None = None
    seeds: list[str] = []
    recent: int | None = None
    depth: int | None = None
    mmr_lambda: float | None = None
    any_time: bool = False
    relations: list[str] = []
    labels: list[str] = []
    sources: list[str] = []
    speakers: list[str] = []
    said_after: str | None = None
    said_before: str | None = None


class _AskOptions(_Options):
    """Rarely used options of an answer; docs/asking.md explains each."""

    kinds: Kinds = []
    tokens: int = 1500
    limit: int | None = None
    history: list[dict[str, str]] = []
    history_tokens: int = 1000
    general: bool = False
    form: str = ""
    level: int | None = Field(None, ge=0)
    min_rating: int = 0
    report_tokens: int = 50_000
    high: list[str] = []
    low: list[str] = []
    max_calls: int | None = None
    max_tokens: int | None = None


def checked(options: dict[str, Any], accepted: type[_Options] = _Options) -> dict[str, Any]:
    """Return the options of a tool as arguments of the memory's methods. Raises InputError."""
    try:
        arguments = accepted.model_validate(options).model_dump()
    except ValidationError as error:
        raise InputError(f"options.{_fault(error, accepted)}", field="options") from None
    if "kinds" in arguments:
        arguments["scopes"] = arguments.pop("kinds")
    names = ("relations", "labels", "sources", "speakers")
    return arguments | {"filters": Filters(**{name: tuple(arguments.pop(name)) for name in names})}


def _fault(error: ValidationError, accepted: type[BaseModel] | None = None) -> str:
    """Return the first fault in one line: the argument, the problem. accepted: has the allowed names."""
    first = error.errors()[0]
    is_extra = accepted is not None and first["type"] == "extra_forbidden"
    why = f"use {', '.join(accepted.model_fields)}" if accepted and is_extra else first["msg"]
    return f"{'.'.join(map(str, first['loc']))}: {why}"


def _line(hit: Hit) -> Line:
    if hit.fact is not None:
        return _fact_line(hit.fact)
    text = f"{hit.text}: {hit.entity.summary}" if hit.entity and hit.entity.summary else hit.text
    return Line(id=hit.client_id or hit.id, kind=hit.scope, text=text, since=_day(hit.reference_time))


def _fact_line(fact: Any) -> Line:  # noqa: ANN401 - a graph.FactSpan
    start, end = _day(fact.valid_at), _day(fact.invalid_at)
    return Line(id=fact.id, kind="fact", text=fact.text, since=start, until=end)


def _day(moment: Any) -> str | None:  # noqa: ANN401 - a datetime, or None
    return None if moment is None else moment.strftime("%Y-%m-%dT%H:%M:%SZ").replace("T00:00:00Z", "")


async def serve_stdio(memory: AsyncMemory, group: str, *, read_only: bool = False) -> None:
    """Serve a group until standard input ends, and ingest added messages. Raises InputError."""
    background = Background(memory)

    async def run(verb: Callable[..., Coroutine[Any, Any, Any]], *args: Any, **options: Any) -> Any:  # noqa: ANN401
        return await to_thread.run_sync(lambda: asyncio.run(verb(*args, **options)))

    async def accept_drafts(drafts: list[Draft]) -> list[Acceptance]:
        memory.check_embedder()
        return await to_thread.run_sync(lambda: accept(memory.store, drafts, now=times.now()))

    connection = Connection(
        memory=memory, group=check_group(group), read=run, change=run, call=to_thread.run_sync,
        ask=partial(run, memory.ask),
        background=background, accept=accept_drafts,
    )  # fmt: skip
    background.start()
    try:
        writes = not read_only
        server = build(lambda _: connection, adds=writes, forgets=writes, asks=memory.can_answer)
        await server.run_stdio_async()
    finally:
        await to_thread.run_sync(background.stop)
