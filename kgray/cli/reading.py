"""search, context, history, show, dump: reading as of any moment, without a model."""

from __future__ import annotations

import json
import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from kgray.cli import printing
from kgray.cli.frame import TEXT, Call, as_of_option, common, finished, group_option, known_at_option
from kgray.errors import InputError, NotBuilt

if TYPE_CHECKING:
    from kgray.graph import Hit

_SCOPES = ("fact", "entity", "episode", "community")


def _query(text: str) -> str:
    """Return the query; "-" reads it from standard input."""
    if text != "-":
        return text
    if sys.stdin is None:
        raise InputError("the query is to be read from standard input, which is closed")
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        raise InputError("the query on standard input is not valid UTF-8") from None


@click.command(short_help="Ranked hits: facts, entities, episodes.")
@click.argument("query", type=TEXT)
@group_option
@as_of_option
@known_at_option
@click.option("--scope", "scopes", multiple=True, type=click.Choice(_SCOPES), help="This scope; repeatable.")
@click.option("--limit", type=int, default=10, metavar="N", help="Length of the list. Default: 10.")
@common
def search(call: Call, query: str, group: str, scopes: tuple[str, ...], **asked: Any) -> int:  # noqa: ANN401
    r"""Search the facts that hold (now, or as of T), the entities, and the episodes. "-" reads the query.

    \b
    Example:
      kgray search "Where does Alice work?" --group team --as-of 2026-03-01
    """
    from kgray.memory import hit_row
    from kgray.search import SCOPES

    if "community" in scopes:
        raise NotBuilt("--scope community is not built in this version: use fact, entity or episode")
    chosen: Any = tuple(dict.fromkeys(scopes)) or SCOPES
    text = _query(query)
    with call.memory() as memory:
        started = time.perf_counter()
        hits = finished(memory.search(text, group=group, scopes=chosen, **asked))
        took_ms = round(1000 * (time.perf_counter() - started), 3)
    if call.as_json:
        printing.emit_json({"hits": [hit_row(hit) for hit in hits], "took_ms": took_ms})
        return 0
    if hits:
        printing.table([_hit_line(number, hit) for number, hit in enumerate(hits, 1)])
    else:
        click.echo("No hits.")
    printing.note(f"{printing.counted(len(hits), 'hit')} in {took_ms:.0f} ms")
    return 0


def _hit_line(number: int, hit: Hit) -> list[str]:
    when = ""
    if hit.fact is not None:
        when = printing.span(hit.fact.valid_at, hit.fact.invalid_at)
    elif hit.reference_time is not None:
        when = printing.moment(hit.reference_time)
    text = f"{hit.speaker}: {hit.text}" if hit.speaker else hit.text
    if hit.entity is not None and hit.entity.labels:
        text += f" ({', '.join(hit.entity.labels)})"
    return [str(number), hit.scope, when, text if len(text) <= 160 else text[:157] + "..."]


@click.command(short_help="The text to put into a prompt.")
@click.argument("query", type=TEXT)
@group_option
@click.option("--tokens", type=int, default=1500, metavar="N", help="The budget. Default: 1500.")
@as_of_option
@known_at_option
@common
def context(call: Call, query: str, group: str, **asked: Any) -> int:  # noqa: ANN401
    r"""Print what the memory holds on a question as a text for a prompt, within a budget of tokens.

    \b
    Example:
      kgray context "Where does Alice work?" --group team --tokens 800
    """
    from kgray.memory import hit_row

    text = _query(query)
    with call.memory() as memory:
        built = finished(memory.context(text, group=group, **asked))
    if call.as_json:
        hits = [hit_row(hit) for hit in built.hits]
        printing.emit_json({"text": built.text, "tokens": built.tokens, "hits": hits})
    else:
        click.echo(built.text.encode())
        printing.note(printing.counted(built.tokens, "token"))
    return 0


@click.command(short_help="Every span of an entity's facts.")
@click.argument("name_or_id", type=TEXT)
@group_option
@common
def history(call: Call, name_or_id: str, group: str) -> int:
    r"""Show every span of an entity's facts, ended ones too, with who said so and what ended them.

    \b
    Example:
      kgray history "Alice Nguyen" --group team
    """
    with call.memory() as memory:
        found = finished(memory.history(name_or_id, group=group))
    if call.as_json:
        printing.emit_json(found.as_dict())
        return 0
    entity = found.entity
    click.echo(click.style(printing.plain(entity.name), bold=True) + f"  {entity.id}")
    if entity.labels:
        click.echo(f"  {printing.plain(', '.join(entity.labels))}")
    if entity.aliases:
        click.echo(f"  also known as {printing.plain(', '.join(entity.aliases))}")
    rows = []
    for fact in found.facts:
        said = ", ".join(found.clients.get(episode) or episode[:8] for episode in fact.episodes)
        ended = ""
        if fact.ended_by:
            ended = f"ended by {found.clients.get(fact.ended_by[0]) or fact.ended_by[0][:8]}"
        subject = found.names.get(fact.source, "?")
        when, target = printing.span(fact.valid_at, fact.invalid_at), found.target(fact) or ""
        rows.append([when, subject, fact.relation, target, f"said in {said}", ended])
    if rows:
        printing.table(rows)
    else:
        click.echo("No facts.")
    return 0


@click.command(short_help="One episode, entity or fact.")
@click.argument("identifier", type=TEXT, metavar="ID")
@group_option
@common
def show(call: Call, identifier: str, group: str) -> int:
    r"""Show one episode, entity or fact with all that hangs on it. ID: ours, or an episode's client id.

    \b
    Example:
      kgray show chat-17 --group team
    """
    with call.memory() as memory:
        rows = finished(memory.show(identifier, group=group))
    if call.as_json:
        printing.emit_json({"records": rows})
        return 0
    for row in rows:
        click.echo(click.style(row["type"], bold=True))
        shown = {key: value for key, value in row.items() if key != "type" and value not in (None, [])}
        printing.pairs((f"  {key}", _cell(value)) for key, value in shown.items())
    return 0


def _cell(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@click.command(short_help="The whole graph of a group, canonical.")
@group_option
@known_at_option
@click.option("--hash", "hashed", is_flag=True, help="Its SHA-256 in hex, alone on the line.")
@common
def dump(call: Call, group: str, known_at: datetime | None, hashed: bool) -> int:
    r"""Print the whole graph of a group as sorted JSON lines: the same graph gives the same bytes.

    \b
    Example:
      kgray dump --group team --hash
    """
    with call.memory() as memory:
        if hashed:
            click.echo(finished(memory.dump_hash(group=group, known_at=known_at)))
            return 0
        for line in finished(memory.dump(group=group, known_at=known_at)):
            click.echo(line.encode())
    return 0
