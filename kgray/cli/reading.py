"""search, context, dump, entities, duplicates, history, show: reading. No model is needed."""

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
from kgray.interchange.formats import FORMATS

if TYPE_CHECKING:
    from kgray.graph import Entity, FactSpan, Hit
    from kgray.memory import AsyncMemory
    from kgray.memory.answers import History, Shown, ToldEpisode
    from kgray.search import Filters

_SCOPES = ("fact", "entity", "episode", "community")
# As in kgray.search.recipes, which --help does not import; a test compares them.
_METHODS = ("bm25", "cosine", "sparse", "bfs")
_RERANKERS = ("none", "rrf", "mmr", "episode_mentions", "node_distance", "cross_encoder")
_TEMPLATES = ("kgray", "paper")
_FILTERED = {  # the scopes on which a filter has an effect: without --scope, only these are searched
    "sources": ("fact", "episode"),
    "speakers": ("fact", "episode"),
    "relations": ("fact",),
    "labels": ("fact", "entity"),
}
_FACT_STYLES = (printing.DIM, {"fg": "green"})
_SAID_ABOVE = {"episode", "entity", "fact", "statement"}  # types of dump rows
_LEFT_OUT = {"type", "fact_group", "from_precision", "to_precision"}  # keys of a dump row that --json has
_LONGEST = 160  # characters of a text where standard output is no terminal
filter_options = together(
    several("--scope", "scopes", type=click.Choice(_SCOPES), help="Only this; repeatable."),
    several("--source", "sources", metavar="S", help="Told in this source."),
    several("--speaker", "speakers", metavar="WHO", help="Told by this speaker."),
    several("--relation", "relations", metavar="R", help="Facts of this relation."),
    several("--type", "labels", metavar="TYPE", help="Of entities of this type."),
    click.option("--said-after", type=MOMENT, metavar="T", help="Episodes said then or later."),
    click.option("--said-before", type=MOMENT, metavar="T", help="Episodes said before."),
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


def asked_of(given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a search; `given` loses the filters, which become one."""
    from kgray.search import SCOPES, Filters

    scopes = given.pop("scopes")
    if "methods" in given:
        given["methods"] = given["methods"] or None
    filters = {name: given.pop(name) for name in _FILTERED}
    filters["relations"] = tuple(name.upper().replace(" ", "_") for name in filters["relations"])
    of = [_FILTERED[name] for name, chosen in filters.items() if chosen]
    reached = tuple(scope for scope in SCOPES if all(scope in scopes_of for scopes_of in of))
    chosen = tuple(dict.fromkeys(scopes)) or (reached if of else ())  # (): the recipe's
    return given | {"scopes": chosen, "filters": Filters(**filters)}


recipe_options = together(
    click.option(
        "--recipe", default="hybrid", metavar="R", help="How to search: docs/searching.md has them."
    ),
    several("--method", "methods", type=click.Choice(_METHODS), help="Only this; repeatable."),
    click.option("--reranker", type=click.Choice(_RERANKERS), help="What orders the hits anew."),
    click.option(
        "--center", "centre", type=TEXT, metavar="WHO", help="An entity, by name or id, for distances."
    ),
    several("--seed", "seeds", metavar="ID", help="Graph steps start at this entity or episode, too."),
    click.option("--recent", type=int, metavar="N", help="Graph steps start at the N newest episodes, too."),
    click.option("--depth", type=int, metavar="N", help="Graph steps: 1 to 4."),
    click.option("--lambda", "mmr_lambda", type=float, metavar="X", help="Of mmr: 1 = nearness alone."),
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
@click.option("--any-time", is_flag=True, help="Facts of any time, ended ones too.")
@click.option("--explain", is_flag=True, help="Also print what found each hit, and what was left out.")
def search(call: Call, query: str, group: str, explain: bool, **given: Any) -> None:  # noqa: ANN401
    """Search the facts that hold (now, or as of T), the entities, and the episodes. "-" reads the query.

    With --source, --speaker, --relation or --type, only what they apply to is searched. They may be repeated.

      kgray search "Where does Alice work?" --group team --as-of 2026-03-01
      kgray search "the printer" --group team --speaker Alice --said-after 2026-03-01
    """
    asked, text = asked_of(given), query_from(query)
    with call.reader(group) as memory:
        started = time.perf_counter()
        found = finished(memory.explain(text, group=group, **asked))
        took_ms = round(1000 * (time.perf_counter() - started), 3)
        _say_unmet(memory, group, asked["filters"], found.hits)
    shown = [hit.as_dict() | ({"signals": dict(hit.signals)} if explain else {}) for hit in found.hits]
    keys = ("scope", "id", "text")
    left = {"said_above": [dict(zip(keys, row, strict=True)) for row in found.said_above]}
    if call.emitted({"hits": shown, **(left if explain else {}), "took_ms": took_ms}):
        return
    rows = [_hit_line(number, hit) for number, hit in enumerate(found.hits, 1)]
    styles = (printing.DIM, {"fg": "cyan"}, printing.DIM, {"fg": "green"})
    printing.table(rows, styles=styles, nothing="No hits: nothing in this group is about the query.")
    for number, hit in enumerate(found.hits if explain else (), 1):
        ranks = ", ".join(f"{method} #{rank}" for method, rank in hit.methods.items())
        signals = ", ".join(f"{name} {value:.3g}" for name, value in hit.signals.items())
        click.echo(f"{number}: score {hit.score:.3f} ({ranks or 'no method alone'}): {signals}")
    for scope, id_, text in found.said_above if explain else ():
        click.echo(f"left out, a hit above says it: {scope} {printing.short(id_)} {text[:_LONGEST]}")
    printing.note(f"{printing.counted(len(found.hits), 'hit')} in {took_ms:.0f} ms")


def _say_unmet(memory: AsyncMemory, group: str, filters: Filters, hits: Sequence[Hit]) -> None:
    """Where nothing was found, say which values of the filters nothing in the group has."""
    from kgray.memory.answers import unmet

    if not hits and memory.store.heads([group])[group].named:
        for line in unmet(memory.store, group, filters):
            printing.note(line)


def _hit_line(number: int, hit: Hit) -> list[str]:
    when = ""
    if hit.fact is not None:
        when = printing.span(hit.valid_at, hit.invalid_at, event=hit.fact.event)
    elif hit.reference_time is not None:
        when = printing.moment(hit.reference_time)
    text = f"{hit.speaker}: {hit.text}" if hit.speaker else hit.text
    if hit.entity is not None and hit.entity.labels:
        text += f" ({', '.join(hit.entity.labels)})"
    text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
    return [str(number), hit.scope, printing.short(hit.id), when, text]


context_options = together(
    click.option("--tokens", type=int, default=1500, metavar="N", help="Of the context. Default: 1500."),
    as_of_option,
    known_at_option,
    filter_options,
    click.option("--limit", type=int, metavar="N", help="Hits to choose from. Default: by the tokens."),
)


@command("The text to put into a prompt.")
@click.argument("query", type=TEXT)
@group_option
@context_options
@recipe_options
@click.option("--template", type=click.Choice(_TEMPLATES), default="kgray", help="paper: as Zep's appendix.")
def context(call: Call, query: str, group: str, **given: Any) -> None:  # noqa: ANN401
    """Print what the memory holds on a question as a text for a prompt, within a budget of tokens.

    Facts ([1]) and messages (2) have numbers; --json lists the episodes that each stands for.

      kgray context "Where does Alice work?" --group team --tokens 800
    """
    asked, text = asked_of(given), query_from(query)
    with call.reader(group) as memory:
        built = finished(memory.context(text, group=group, **asked))
        _say_unmet(memory, group, asked["filters"], built.hits)
    if not call.emitted(built.as_dict()):
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
def export(call: Call, path: str, group: str, to: str, **moments: datetime | None) -> None:
    """Write a group to PATH: a new file, or a new folder for formats of several files.

    kgray export vault/ --group team --to okf
    kgray export team.graphml --group team --to graphml --known-at 2026-03-01
    """
    with call.reader(group) as memory:
        report = finished(memory.export(path, to=to, group=group, **moments))
    if not call.emitted(report.as_dict()):
        rows = ", ".join(f"{name} {count}" for name, count in report.rows.items())
        click.echo(f"{path}: {printing.counted(report.files, 'file')}; {rows or 'nothing'}")


@command("Entities, by name or with most facts.")
@click.argument("query", type=TEXT, default="")
@group_option
@click.option("--limit", type=click.IntRange(min=1), default=20, metavar="N", help="Length. Default: 20.")
def entities(call: Call, query: str, group: str, limit: int) -> None:
    """List the entities whose name or alias is like QUERY; without one, those with most facts.

    kgray entities alice --group team
    """
    with call.reader(group) as memory:
        found = finished(memory.entities(query, group=group, limit=limit))
    listed = [entity.as_dict() for entity in found]
    rows = [
        [
            printing.short(one["id"]),
            one["name"],
            ", ".join(one["labels"]),
            one["facts"],
            ", ".join(one["aliases"]),
        ]
        for one in listed
    ]
    head = ("id", "name", "type", "facts", "also known as")
    call.listed("entities", listed, rows, head=head, nothing="No entities.")


@command("Entities that may be one.")
@group_option
@click.option("--limit", type=click.IntRange(min=1), default=50, metavar="N", help="Length. Default: 50.")
def duplicates(call: Call, group: str, limit: int) -> None:
    """List pairs of entities that may be one, the likeliest first: `kgray merge` makes one of a pair.

    `kgray distinct` takes it off the list.

      kgray duplicates --group team
    """
    with call.reader(group) as memory:
        found = finished(memory.duplicates(group=group, limit=limit))
    rows = [
        [f"{p.score:.2f}", printing.short(p.a), p.names[0], printing.short(p.b), p.names[1], p.why]
        for p in found
    ]
    head = ("score", "id", "name", "id", "name", "why")
    pairs = [pair.as_dict() for pair in found]
    call.listed("pairs", pairs, rows, head=head, nothing="No likely duplicates.")


@command("Every span of an entity's facts.")
@click.argument("name_or_id", type=TEXT)
@group_option
@click.option("--as-of", type=MOMENT, metavar="T", help="Only facts that held then. Default: all.")
@known_at_option
def history(call: Call, name_or_id: str, group: str, **moments: Any) -> None:  # noqa: ANN401
    """Show every span of an entity's facts, ended ones too, with who said so and what ended them.

    NAME_OR_ID: a name or alias as it was known at --known-at, an id, or the beginning of one. With --as-of
    only the facts that held then.

      kgray history "Alice Nguyen" --group team
      kgray history "Alice Nguyen" --group team --known-at 2026-03-01
    """
    with call.reader(group) as memory:
        found = finished(memory.history(name_or_id, group=group, **moments))
    if call.emitted(found.as_dict()):
        return
    _print_entity(found.entity, _known(found) or found.entity.summary)
    rows = [
        [when, fact.source or "?", fact.relation, fact.target or "", *others]
        for fact in found.facts
        for when, *others in [_cells(fact, found)]
    ]
    styles = ({"fg": "green"}, None, {"fg": "cyan"}, None, None, None, printing.DIM)
    printing.table(rows, styles=styles, nothing="No facts.")


@command("One episode, entity or fact.")
@click.argument("identifier", type=TEXT, metavar="ID_OR_NAME")
@group_option
def show(call: Call, identifier: str, group: str) -> None:
    """Show one episode, entity or fact with all that belongs to it, and the words that facts were read from.

    ID_OR_NAME: an id or the beginning of one, an episode's client id, or an entity's name.

      kgray show chat-17 --group team
    """
    with call.reader(group) as memory:
        found = finished(memory.describe(identifier, group=group))
    if call.emitted(found.as_dict()):
        return
    numbers = {fact.id: number for number, fact in enumerate(found.facts, 1)}
    asked = [entity for entity in found.entities if entity.id == found.id]
    for entity in asked:
        _print_entity(entity, _known(found) or found.summary)
    for episode in found.episodes:
        _print_episode(episode, found.facts, numbers)
    for entity in found.entities:
        if entity not in asked:
            _print_entity(entity)
    if rows := [
        [str(numbers[f.id]), when, f.text, *rest] for f in found.facts for when, *rest in [_cells(f, found)]
    ]:
        click.echo(click.style("facts", bold=True))
        printing.table(rows, styles=(*_FACT_STYLES, None, None, None, None, printing.DIM))
    # Mentions, evidence, relations, verdicts and merges, with names beside ids.
    for kind in dict.fromkeys(row["type"] for row in found.records if row["type"] not in _SAID_ABOVE):
        click.echo(click.style(kind, bold=True))
        for row in [row for row in found.records if row["type"] == kind]:
            told = {key: value for key, value in row.items() if key not in _LEFT_OUT}
            cells = (f"{key} {_named(of, found)}" for key, of in told.items() if of not in (None, [], False))
            printing.table([[f"  {', '.join(cells)}"]])


def _known(found: History | Shown) -> str:
    """Return what a model wrote of an entity, marked as that; "" = nothing that is still so."""
    told = ", ".join(client or printing.short(episode) for episode, client in found.profile_sources)
    return found.profile and f"{found.profile} (written by a model from {told})"


def _print_entity(entity: Entity, known: str = "") -> None:
    _print_name(entity.name, entity.id)
    aliases = f"also known as {', '.join(entity.aliases)}" if entity.aliases else ""
    for line in filter(None, (", ".join(entity.labels), aliases, known)):
        click.echo(f"  {printing.plain(line)}")


def _print_name(name: str, id_: str) -> None:
    click.echo(f"{click.style(printing.plain(name), bold=True)}  {printing.short(id_)}")


def _print_episode(episode: ToldEpisode, facts: Sequence[FactSpan], numbers: Mapping[str, int]) -> None:
    _print_name(episode.client_id or episode.kind, episode.id)
    by = f" by {episode.speaker}" if episode.speaker else ""
    recorded = f"recorded {printing.moment(episode.recorded_at)}" if episode.recorded_at else "pending"
    said = f"{printing.moment(episode.reference_time)}{by} in source {episode.source}"
    state = f"{episode.state}, {recorded}, {episode.kind} {episode.sequence} of the group"
    printing.pairs({"  said": said, "  state": state})
    told: dict[tuple[int, int], set[str]] = {}  # statements by the words that they were read from
    for mark in episode.marks:
        told.setdefault((mark.start, mark.end), set()).add(mark.statement)
    # Words of facts in brackets, each with the facts' numbers; of words that overlap, the first are marked.
    parts, at = list[str](), 0
    for (start, end), statements in sorted(told.items()):
        if start >= at:
            marked = ",".join(str(numbers[fact.id]) for fact in facts if fact.statement in statements)
            words = click.style(f"[{printing.plain_lines(episode.text[start:end])}]", underline=True)
            parts += [printing.plain_lines(episode.text[at:start]), words, click.style(marked, dim=True)]
            at = end
    for line in "".join([*parts, printing.plain_lines(episode.text[at:])]).splitlines():
        click.echo(f"  | {line}")


def _cells(fact: FactSpan, found: History | Shown) -> list[str]:
    """Return when a fact held, who said it, what ended it, when this memory learned of both, and its id."""
    told, ended = ", ".join(client or printing.short(episode) for episode, client in fact.episodes), ""
    said = f"said in {told}"
    if fact.ended_by is not None and [fact.ended_by[0]] == [episode for episode, _ in fact.episodes]:
        said = f"said with its end in {told}"
    elif fact.ended_by is not None:
        ended = f"ended by {found.clients.get(fact.ended_by[0]) or printing.short(fact.ended_by[0])}"
    end = "" if fact.expired_at is None else f", its end {printing.moment(fact.expired_at)}"
    learned = f"learned {printing.moment(fact.created_at)}{end}"
    when = printing.span(fact.valid_at, fact.invalid_at, event=fact.event)
    return [when, said, ended, learned, printing.short(fact.id)]


def _named(value: object, found: Shown) -> str:
    """Return a value of a dump row; an id with its name beside it."""
    if isinstance(value, str):
        if numbers := [str(n) for n, fact in enumerate(found.facts, 1) if fact.statement == value]:
            return f"of fact {','.join(numbers)}"
        name = found.names.get(value) or found.clients.get(value)
        is_id = value in found.names or value in found.clients
        shown = printing.short(value) if is_id else value.removesuffix("T00:00:00.000000Z")
        return f"{shown} ({name})" if name else shown
    if isinstance(value, Iterable) and not isinstance(value, Mapping):
        return " and ".join(_named(item, found) for item in value)
    return json.dumps(value, ensure_ascii=False)
