"""entities, duplicates, history, show: what a memory knows of things, with both clocks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from kgray.cli import printing
from kgray.cli.frame import MOMENT, TEXT, Call, command, finished, group_option, known_at_option

if TYPE_CHECKING:
    from kgray.graph import Entity, FactSpan
    from kgray.memory.answers import History, Shown, ToldEpisode

_FACT_STYLES = (printing.DIM, {"fg": "green"})


@command("Entities, by name or with most facts.")
@click.argument("query", type=TEXT, default="")
@group_option
@click.option("--limit", type=click.IntRange(min=1), default=20, metavar="N", help="Length. Default: 20.")
def entities(call: Call, query: str, group: str, limit: int) -> int:
    """List the entities whose name or alias is like QUERY; without one, those with most facts.

    kgray entities alice --group team
    """
    with call.reader(group) as memory:
        found = finished(memory.entities(query, group=group, limit=limit))
    rows = [
        [printing.short(one.id), one.name, ", ".join(one.labels), row.facts, ", ".join(one.aliases)]
        for row in found
        for one in [row.entity]
    ]
    look: dict[str, Any] = {
        "head": ("id", "name", "type", "facts", "also known as"),
        "styles": (printing.DIM, printing.BOLD, {"fg": "cyan"}),
    }
    listed = {"entities": [entity.as_dict() for entity in found]}
    return call.answer(listed, lambda: printing.table(rows, **look, nothing="No entities."))


@command("Entities that may be one.")
@group_option
@click.option("--limit", type=click.IntRange(min=1), default=50, metavar="N", help="Length. Default: 50.")
def duplicates(call: Call, group: str, limit: int) -> int:
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
    pairs = {"pairs": [pair.as_dict() for pair in found]}
    return call.answer(pairs, lambda: printing.table(rows, head=head, nothing="No likely duplicates."))


@command("Every span of an entity's facts.")
@click.argument("name_or_id", type=TEXT)
@group_option
@click.option("--as-of", type=MOMENT, metavar="T", help="Only facts that held then. Default: all.")
@known_at_option
def history(call: Call, name_or_id: str, group: str, **moments: Any) -> int:  # noqa: ANN401
    """Show every span of an entity's facts, ended ones too, with who said so and what ended them.

    NAME_OR_ID: a name or alias as it was known at --known-at, an id, or the beginning of one. With --as-of
    only the facts that held then.

      kgray history "Alice Nguyen" --group team
      kgray history "Alice Nguyen" --group team --known-at 2026-03-01
    """
    with call.reader(group) as memory:
        found = finished(memory.history(name_or_id, group=group, **moments))
    return call.answer(found.as_dict(), lambda: _print_history(found))


def _print_history(found: History) -> None:
    _print_entity(found.entity, found.profile)
    rows = []
    for fact in found.facts:
        when, *others = _cells(fact, found.clients)
        rows.append([when, fact.source or "?", fact.relation, fact.target or "", *others])
    styles = ({"fg": "green"}, None, {"fg": "cyan"}, None, None, None, printing.DIM)
    printing.table(rows, styles=styles, nothing="No facts.")


@command("One episode, entity or fact.")
@click.argument("identifier", type=TEXT, metavar="ID_OR_NAME")
@group_option
def show(call: Call, identifier: str, group: str) -> int:
    """Show one episode, entity or fact with all that belongs to it, and the words that facts were read from.

    ID_OR_NAME: an id or the beginning of one, an episode's client id, or an entity's name.

      kgray show chat-17 --group team
    """
    with call.reader(group) as memory:
        found = finished(memory.describe(identifier, group=group))
    document = {"records": found.records, "profile": found.profile}
    return call.answer(document, lambda: _print_shown(found))


def _print_shown(found: Shown) -> None:
    numbers = {fact.id: number for number, fact in enumerate(found.facts, 1)}
    asked = [entity for entity in found.entities if entity.id == found.id]
    for entity in asked:
        _print_entity(entity, found.profile)
    for episode in found.episodes:
        _print_episode(episode, found.facts, numbers)
    for entity in found.entities:
        if entity not in asked:
            _print_entity(entity)
    _print_facts(found, numbers)
    _print_rest(found)


def _print_entity(entity: Entity, profile: str = "") -> None:
    click.echo(click.style(printing.plain(entity.name), bold=True) + f"  {printing.short(entity.id)}")
    if entity.labels:
        click.echo(f"  {printing.plain(', '.join(entity.labels))}")
    if entity.aliases:
        click.echo(f"  also known as {printing.plain(', '.join(entity.aliases))}")
    if profile:
        click.echo(f"  {printing.plain(profile)}")


def _print_episode(episode: ToldEpisode, facts: Sequence[FactSpan], numbers: Mapping[str, int]) -> None:
    name = click.style(printing.plain(episode.client_id or episode.kind), bold=True)
    click.echo(f"{name}  {printing.short(episode.id)}")
    by = f" by {episode.speaker}" if episode.speaker else ""
    recorded = (
        "pending" if episode.recorded_at is None else f"recorded {printing.moment(episode.recorded_at)}"
    )
    printing.pairs(
        {
            "  said": f"{printing.moment(episode.reference_time)}{by} in source {episode.source}",
            "  state": f"{episode.state}, {recorded}, {episode.kind} {episode.sequence} of the group",
        }
    )
    told: dict[tuple[int, int], set[str]] = {}  # statements by the words that they were read from
    for mark in episode.marks:
        told.setdefault((mark.start, mark.end), set()).add(mark.statement)
    marks = {
        at: ",".join(str(numbers[fact.id]) for fact in facts if fact.statement in statements)
        for at, statements in told.items()
    }
    for line in _marked(episode.text, marks).splitlines():
        click.echo(f"  | {line}")


def _marked(text: str, marks: Mapping[tuple[int, int], str]) -> str:
    """Return a text with the words of its facts in brackets, each followed by the facts' numbers.

    On a terminal they are underlined too. Of words that overlap, the first are marked.
    """
    parts, at = [], 0
    for (start, end), numbers in sorted(marks.items()):
        if start < at:
            continue
        parts.append(_lines(text[at:start]))
        parts.append(
            click.style(f"[{_lines(text[start:end])}]", underline=True) + click.style(numbers, dim=True)
        )
        at = end
    return "".join([*parts, _lines(text[at:])])


def _lines(text: str) -> str:
    """Return stored text without control characters but line breaks."""
    return "\n".join(map(printing.plain, text.split("\n")))


def _print_facts(found: Shown, numbers: Mapping[str, int]) -> None:
    rows = []
    for fact in found.facts:
        when, *others = _cells(fact, found.clients)
        rows.append([str(numbers[fact.id]), when, fact.text, *others])
    if rows:
        click.echo(click.style("facts", bold=True))
        printing.table(rows, styles=(*_FACT_STYLES, None, None, None, None, printing.DIM))


def _cells(fact: FactSpan, clients: Mapping[str, str | None]) -> list[str]:
    """Return when a fact held, who said it, what ended it, when this memory learned of both, and its id."""
    told, ended = ", ".join(client or printing.short(episode) for episode, client in fact.episodes), ""
    said = f"said in {told}"
    if fact.ended_by is not None and [fact.ended_by[0]] == [episode for episode, _ in fact.episodes]:
        said = f"said with its end in {told}"
    elif fact.ended_by is not None:
        ended = f"ended by {clients.get(fact.ended_by[0]) or printing.short(fact.ended_by[0])}"
    end = "" if fact.expired_at is None else f", its end {printing.moment(fact.expired_at)}"
    learned = f"learned {printing.moment(fact.created_at)}{end}"
    when = printing.span(fact.valid_at, fact.invalid_at, event=fact.event)
    return [when, said, ended, learned, printing.short(fact.id)]


_SAID_ABOVE = {"episode", "entity", "fact", "statement"}  # types of rows
_LEFT_OUT = {"type", "fact_group", "from_precision", "to_precision"}  # keys of a row that --json has


def _print_rest(found: Shown) -> None:
    """Print mentions, evidence, relations, verdicts and merges, with names beside ids."""
    kinds = dict.fromkeys(row["type"] for row in found.records if row["type"] not in _SAID_ABOVE)
    for kind in kinds:
        click.echo(click.style(kind, bold=True))
        for row in [row for row in found.records if row["type"] == kind]:
            told = {key: value for key, value in row.items() if key not in _LEFT_OUT}
            cells = (f"{key} {_named(of, found)}" for key, of in told.items() if of not in (None, [], False))
            printing.table([[f"  {', '.join(cells)}"]])


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
