"""search, context, dump, entities, duplicates, history, show: reads, which need no model."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from kgray.cli import printing
from kgray.cli.frame import (
    MOMENT,
    TEXT,
    Call,
    as_of_option,
    command,
    finished,
    group_option,
    known_at_option,
    several,
    together,
)
from kgray.errors import InputError
from kgray.io.interchange.formats import FORMATS

if TYPE_CHECKING:
    from kgray.domain.graph import Entity, FactSpan, Hit
    from kgray.memory import AsyncMemory
    from kgray.memory.answers import History, Shown
    from kgray.memory.results import LoggedEpisode
    from kgray.search import Filters

_SCOPES = ("fact", "entity", "episode", "community")
# Copies of the names in kgray.search.recipes, which --help does not import; a test compares them.
_METHODS = ("bm25", "cosine", "sparse", "bfs")
_RERANKERS = ("none", "rrf", "mmr", "episode_mentions", "node_distance", "cross_encoder")
_TEMPLATES = ("kgray", "paper")
_FILTERED = {  # the scopes that a filter applies to: without --scope, the search is limited to them
    "sources": ("fact", "episode"),
    "speakers": ("fact", "episode"),
    "relations": ("fact",),
    "labels": ("fact", "entity"),
}
_FACT_STYLES = (printing.DIM, {"fg": "green"})
_PRINTED_ABOVE = {"episode", "entity", "fact", "statement"}  # types of dump rows that `show` prints first
_HIDDEN_KEYS = {"type", "fact_group", "from_precision", "to_precision"}  # keys of a dump row for --json only
_MAX_TEXT = 160  # characters of a text if standard output is no terminal
filter_options = together(
    several("--scope", "scopes", type=click.Choice(_SCOPES), help="This scope only; repeatable."),
    several("--source", "sources", metavar="S", help="Stated in this source."),
    several("--speaker", "speakers", metavar="WHO", help="Stated by this speaker."),
    several("--relation", "relations", metavar="R", help="Facts of this relation."),
    several("--type", "labels", metavar="TYPE", help="Entities of this type, and their facts."),
    click.option("--said-after", type=MOMENT, metavar="T", help="Episodes of T or later."),
    click.option("--said-before", type=MOMENT, metavar="T", help="Episodes before T."),
)


def query_from(text: str) -> str:
    """Return the query; "-" reads it from standard input."""
    if text != "-":
        return text
    if sys.stdin is None:
        raise InputError("the query is to be read from standard input, which is closed")
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        raise InputError("the query on standard input is not valid UTF-8") from None


def search_arguments(options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a search, with all filters in one `Filters`; changes `options`."""
    from kgray.search import SCOPES, Filters

    scopes = options.pop("scopes")
    if "methods" in options:
        options["methods"] = options["methods"] or None
    filters = {name: options.pop(name) for name in _FILTERED}
    scopes_of_filters = [_FILTERED[name] for name, chosen in filters.items() if chosen]
    reached = tuple(scope for scope in SCOPES if all(scope in scopes_of for scopes_of in scopes_of_filters))
    chosen = tuple(dict.fromkeys(scopes)) or (reached if scopes_of_filters else ())  # (): the recipe's
    return options | {"scopes": chosen, "filters": Filters(**filters)}


recipe_options = together(
    click.option("--recipe", default="hybrid", metavar="R", help="A search recipe: see docs/searching.md."),
    several("--method", "methods", type=click.Choice(_METHODS), help="This method only; repeatable."),
    click.option("--reranker", type=click.Choice(_RERANKERS), help="The method that reorders the hits."),
    click.option(
        "--center", "centre", type=TEXT, metavar="WHO", help="An entity, by name or id, for distances."
    ),
    several("--seed", "seeds", metavar="ID", help="Graph steps start at this entity or episode, too."),
    click.option("--recent", type=int, metavar="N", help="Graph steps start at the N newest episodes, too."),
    click.option("--depth", type=int, metavar="N", help="Graph steps: 1 to 4."),
    click.option(
        "--lambda", "mmr_lambda", type=float, metavar="X", help="Lambda of mmr: 1 = similarity only."
    ),
    click.option("--any-time", is_flag=True, help="Facts of any time, ended facts too."),
)


_WRITTEN = [name for name, form in FORMATS.items() if form.writer]


@command("Ranked hits: facts, entities, episodes.")
@click.argument("query", type=TEXT)
@group_option
@as_of_option
@known_at_option
@filter_options
@click.option("--limit", type=int, default=10, metavar="N", help="Length of the list. Default: 10.")
@recipe_options
@click.option("--explain", is_flag=True, help="Also print each hit's ranks and signals, and omitted hits.")
def search(call: Call, query: str, group: str, explain: bool, **options: Any) -> None:  # noqa: ANN401
    """Search the facts that hold (now, or as of T), the entities, and the episodes. "-" reads the query.

    With --source, --speaker, --relation or --type, only the scopes of these filters are searched. They may be
    repeated.

      kgray search "Where does Alice work?" --group team --as-of 2026-03-01
      kgray search "the printer" --group team --speaker Alice --said-after 2026-03-01
    """
    arguments, text = search_arguments(options), query_from(query)
    with call.reader(group) as memory:
        started = time.perf_counter()
        result = finished(memory.explain(text, group=group, **arguments))
        took_ms = round(1000 * (time.perf_counter() - started), 3)
        _note_unused_filters(memory, group, arguments["filters"], result.hits)
    rows_of_hits = [
        hit.as_dict() | ({"signals": dict(hit.signals)} if explain else {}) for hit in result.hits
    ]
    keys = ("scope", "id", "text")
    omitted = {"said_above": [dict(zip(keys, row, strict=True)) for row in result.said_above]}
    if call.emitted({"hits": rows_of_hits, **(omitted if explain else {}), "took_ms": took_ms}):
        return
    rows = [_hit_line(number, hit) for number, hit in enumerate(result.hits, 1)]
    styles = (printing.DIM, {"fg": "cyan"}, printing.DIM, {"fg": "green"})
    printing.table(rows, styles=styles, nothing="No hits: nothing in this group is about the query.")
    for number, hit in enumerate(result.hits if explain else (), 1):
        ranks = ", ".join(f"{method} #{rank}" for method, rank in hit.methods.items())
        signals = ", ".join(f"{name} {value:.3g}" for name, value in hit.signals.items())
        click.echo(f"{number}: score {hit.score:.3f} ({ranks or 'no method alone'}): {signals}")
    for scope, id_, text in result.said_above if explain else ():
        click.echo(f"left out, a hit above says it: {scope} {printing.short(id_)} {text[:_MAX_TEXT]}")
    printing.note(f"{printing.counted(len(result.hits), 'hit')} in {took_ms:.0f} ms")


def _note_unused_filters(memory: AsyncMemory, group: str, filters: Filters, hits: Sequence[Hit]) -> None:
    """Print a note on each filter value that occurs nowhere in the group, if there are no hits."""
    from kgray.memory.answers import unmet

    if not hits and memory.store.heads([group])[group].named:
        for line in unmet(memory.store, group, filters):
            printing.note(line)


def _hit_line(number: int, hit: Hit) -> list[str]:
    span = ""
    if hit.fact is not None:
        span = printing.span(hit.valid_at, hit.invalid_at, event=hit.fact.event)
    elif hit.reference_time is not None:
        span = printing.moment(hit.reference_time)
    text = f"{hit.speaker}: {hit.text}" if hit.speaker else hit.text
    if hit.entity is not None and hit.entity.labels:
        text += f" ({', '.join(hit.entity.labels)})"
    text = text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 3]}..."
    return [str(number), hit.scope, printing.short(hit.id), span, text]


context_options = together(
    click.option("--tokens", type=int, default=1500, metavar="N", help="Size of the context. Default: 1500."),
    as_of_option,
    known_at_option,
    filter_options,
    click.option("--limit", type=int, metavar="N", help="Hits to choose from. Default: by --tokens."),
)


@command("The text to put into a prompt.")
@click.argument("query", type=TEXT)
@group_option
@context_options
@recipe_options
@click.option("--template", type=click.Choice(_TEMPLATES), default="kgray", help="paper: as Zep's appendix.")
def context(call: Call, query: str, group: str, **options: Any) -> None:  # noqa: ANN401
    """Print the memory's knowledge about a question as a text for a prompt, within a budget of tokens.

    Facts ([1]) and messages (2) have numbers; --json lists the episodes of each number.

      kgray context "Where does Alice work?" --group team --tokens 800
    """
    arguments, text = search_arguments(options), query_from(query)
    with call.reader(group) as memory:
        built = finished(memory.context(text, group=group, **arguments))
        _note_unused_filters(memory, group, arguments["filters"], built.hits)
    if not call.emitted(built):
        click.echo(built.text.encode())
        printing.note(printing.counted(built.tokens, "token"))


@command("The whole graph of a group, canonical.")
@group_option
@known_at_option
@click.option("--hash", "hashed", is_flag=True, help="Its SHA-256 in hex, alone on the line.")
def dump(call: Call, group: str, known_at: datetime | None, hashed: bool) -> None:
    """Print the whole graph of a group as sorted JSON lines: the same graph gives the same bytes.

    kgray dump --group team --hash
    """
    with call.reader(group) as memory:
        if hashed:
            click.echo(finished(memory.dump_hash(group=group, known_at=known_at)))
            return
        for line in finished(memory.dump(group=group, known_at=known_at)):
            click.echo(line.encode())


@command("A group in the format of another tool.")
@click.argument("path", type=TEXT)
@group_option
@click.option("--to", type=click.Choice(_WRITTEN), required=True, help="The format: docs/interchange.md.")
@click.option("--as-of", type=MOMENT, metavar="T", help="Only facts that held then. Default: of all spans.")
@known_at_option
def export(call: Call, path: str, group: str, to: str, **moments: Any) -> None:  # noqa: ANN401 - click's
    """Write a group to PATH: a new file, or a new folder for formats of several files.

    kgray export vault/ --group team --to okf
    kgray export team.graphml --group team --to graphml --known-at 2026-03-01
    """
    with call.reader(group) as memory:
        report = finished(memory.export(path, to=to, group=group, **moments))
    if not call.emitted(report):
        rows = ", ".join(f"{name} {count}" for name, count in report.rows.items())
        click.echo(f"{path}: {printing.counted(report.files, 'file')}; {rows or 'nothing'}")


@command("Entities, by name or with most facts.")
@click.argument("query", type=TEXT, default="")
@group_option
@click.option("--limit", type=click.IntRange(min=1), default=20, metavar="N", help="Length. Default: 20.")
def entities(call: Call, query: str, group: str, limit: int) -> None:
    """List the entities with a name or alias like QUERY; without QUERY, the entities with most facts.

    kgray entities alice --group team
    """
    with call.reader(group) as memory:
        matches = finished(memory.entities(query, group=group, limit=limit))
    rows = [
        [printing.short(e.id), e.name, ", ".join(e.labels), match.facts, ", ".join(e.aliases)]
        for match in matches
        for e in [match.entity]
    ]
    head = ("id", "name", "type", "facts", "also known as")
    call.listed("entities", matches, rows, head=head, nothing="No entities.")


@command("Entities that may be the same.")
@group_option
@click.option("--limit", type=click.IntRange(min=1), default=50, metavar="N", help="Length. Default: 50.")
def duplicates(call: Call, group: str, limit: int) -> None:
    """List pairs of entities that may be the same, the likeliest first: `kgray merge` merges a pair.

    `kgray distinct` takes a pair off the list.

      kgray duplicates --group team
    """
    with call.reader(group) as memory:
        suggestions = finished(memory.duplicates(group=group, limit=limit))
    rows = [
        [f"{p.score:.2f}", printing.short(p.a), p.names[0], printing.short(p.b), p.names[1], p.why]
        for p in suggestions
    ]
    head = ("score", "id", "name", "id", "name", "why")
    call.listed("pairs", suggestions, rows, head=head, nothing="No likely duplicates.")


@command("Every span of an entity's facts.")
@click.argument("name_or_id", type=TEXT)
@group_option
@click.option("--as-of", type=MOMENT, metavar="T", help="Only facts that held then. Default: all.")
@known_at_option
def history(call: Call, name_or_id: str, group: str, **moments: Any) -> None:  # noqa: ANN401
    """Show every span of an entity's facts, ended spans too, with their sources and the reason of each end.

    NAME_OR_ID: a name or alias known at --known-at, an id, or the beginning of an id. With --as-of, only
    the facts that held then.

      kgray history "Alice Nguyen" --group team
      kgray history "Alice Nguyen" --group team --known-at 2026-03-01
    """
    with call.reader(group) as memory:
        result = finished(memory.history(name_or_id, group=group, **moments))
    if call.emitted(result):
        return
    _print_entity(result.entity, _profile_line(result) or result.entity.summary)
    rows = [
        [span, fact.subject or "?", fact.relation, fact.object or "", *cells]
        for fact in result.facts
        for span, *cells in [_cells(fact, result)]
    ]
    styles = ({"fg": "green"}, None, {"fg": "cyan"}, None, None, None, printing.DIM)
    printing.table(rows, styles=styles, nothing="No facts.")


@command("One episode, entity or fact.")
@click.argument("identifier", type=TEXT, metavar="ID_OR_NAME")
@group_option
def show(call: Call, identifier: str, group: str) -> None:
    """Show an episode, entity or fact with its related rows, and the words that facts were read from.

    ID_OR_NAME: an id or the beginning of an id, an episode's client id, or an entity's name.

      kgray show chat-17 --group team
    """
    with call.reader(group) as memory:
        result = finished(memory.show(identifier, group=group))
    if call.emitted(result):
        return
    numbers = {fact.id: number for number, fact in enumerate(result.facts, 1)}
    named_entities = [entity for entity in result.entities if entity.id == result.id]
    for entity in named_entities:
        _print_entity(entity, _profile_line(result) or result.summary)
    for episode in result.episodes:
        _print_episode(episode, result.facts, numbers)
    for entity in result.entities:
        if entity not in named_entities:
            _print_entity(entity)
    if rows := [
        [str(numbers[f.id]), span, f.text, *cells]
        for f in result.facts
        for span, *cells in [_cells(f, result)]
    ]:
        click.echo(click.style("facts", bold=True))
        printing.table(rows, styles=(*_FACT_STYLES, None, None, None, None, printing.DIM))
    # Mentions, evidence, relations, verdicts and merges, with the names of ids.
    for kind in dict.fromkeys(row["type"] for row in result.records if row["type"] not in _PRINTED_ABOVE):
        click.echo(click.style(kind, bold=True))
        for row in [row for row in result.records if row["type"] == kind]:
            values = {key: value for key, value in row.items() if key not in _HIDDEN_KEYS}
            cells = (
                f"{key} {_named(value, result)}"
                for key, value in values.items()
                if value not in (None, [], False)
            )
            printing.table([[f"  {', '.join(cells)}"]])


def _profile_line(result: History | Shown) -> str:
    """Return the profile that a model wrote of an entity, with its sources; "" = no current profile."""
    sources = ", ".join(client or printing.short(episode) for episode, client in result.profile_sources)
    return result.profile and f"{result.profile} (written by a model from {sources})"


def _print_entity(entity: Entity, description: str = "") -> None:
    _print_name(entity.name, entity.id)
    aliases = f"also known as {', '.join(entity.aliases)}" if entity.aliases else ""
    for line in filter(None, (", ".join(entity.labels), aliases, description)):
        click.echo(f"  {printing.plain(line)}")


def _print_name(name: str, id_: str) -> None:
    click.echo(f"{click.style(printing.plain(name), bold=True)}  {printing.short(id_)}")


def _print_episode(episode: LoggedEpisode, facts: Sequence[FactSpan], numbers: Mapping[str, int]) -> None:
    _print_name(episode.client_id or episode.kind, episode.id)
    speaker = f" by {episode.speaker}" if episode.speaker else ""
    recorded = f"recorded {printing.moment(episode.recorded_at)}" if episode.recorded_at else "pending"
    time_line = f"{printing.moment(episode.reference_time)}{speaker} in source {episode.source}"
    state = f"{episode.state}, {recorded}, {episode.kind} {episode.sequence} of the group"
    printing.pairs({"  said": time_line, "  state": state})
    statements_by_words: dict[
        tuple[int, int], set[str]
    ] = {}  # statements by the span that they were read from
    for mark in episode.marks:
        statements_by_words.setdefault((mark.start, mark.end), set()).add(mark.statement)
    # Spans of facts in brackets, with the facts' numbers; of overlapping spans, only the first is marked.
    parts, at = list[str](), 0
    for (start, end), statements in sorted(statements_by_words.items()):
        if start >= at:
            marked = ",".join(str(numbers[fact.id]) for fact in facts if fact.statement in statements)
            words = click.style(f"[{printing.plain_lines(episode.text[start:end])}]", underline=True)
            parts += [printing.plain_lines(episode.text[at:start]), words, click.style(marked, dim=True)]
            at = end
    for line in "".join([*parts, printing.plain_lines(episode.text[at:])]).splitlines():
        click.echo(f"  | {line}")


def _cells(fact: FactSpan, result: History | Shown) -> list[str]:
    """Return a fact's cells: span, source, end, record times, id."""
    episodes, ended = ", ".join(client or printing.short(episode) for episode, client in fact.episodes), ""
    source = f"said in {episodes}"
    if fact.ended_by is not None and [fact.ended_by[0]] == [episode for episode, _ in fact.episodes]:
        source = f"said with its end in {episodes}"
    elif fact.ended_by is not None:
        ended = f"ended by {result.clients.get(fact.ended_by[0]) or printing.short(fact.ended_by[0])}"
    end = "" if fact.expired_at is None else f", its end {printing.moment(fact.expired_at)}"
    learned = f"learned {printing.moment(fact.created_at)}{end}"
    span = printing.span(fact.valid_at, fact.invalid_at, event=fact.event)
    return [span, source, ended, learned, printing.short(fact.id)]


def _named(value: object, result: Shown) -> str:
    """Return a value of a dump row as text; an id is followed by its name."""
    if isinstance(value, str):
        if numbers := [str(n) for n, fact in enumerate(result.facts, 1) if fact.statement == value]:
            return f"of fact {','.join(numbers)}"
        name = result.names.get(value) or result.clients.get(value)
        is_id = value in result.names or value in result.clients
        text = printing.short(value) if is_id else value.removesuffix("T00:00:00.000000Z")
        return f"{text} ({name})" if name else text
    if isinstance(value, Iterable) and not isinstance(value, Mapping):
        return " and ".join(_named(item, result) for item in value)
    return json.dumps(value, ensure_ascii=False)
