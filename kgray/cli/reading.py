"""search, context, ask, dump: reading as of any moment; only ask needs a model."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
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

if TYPE_CHECKING:
    from kgray.graph import Hit
    from kgray.memory import Memory
    from kgray.search import Filters, Ranking
    from kgray.search.answering import Answered

_SCOPES = ("fact", "entity", "episode", "community")
_FILTERED = {  # the scopes on which a filter has an effect: without --scope, only these are searched
    "sources": ("fact", "episode"),
    "speakers": ("fact", "episode"),
    "relations": ("fact",),
    "labels": ("fact", "entity"),
}
_LEFT = ("scope", "id", "text")
_CITED = 100  # characters of a line that an answer cites
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
    filters = {name: given.pop(name) for name in _FILTERED}
    filters["relations"] = tuple(name.upper().replace(" ", "_") for name in filters["relations"])
    of = [_FILTERED[name] for name, chosen in filters.items() if chosen]
    reached = tuple(scope for scope in SCOPES if all(scope in scopes_of for scopes_of in of))
    chosen = tuple(dict.fromkeys(scopes)) or (reached if of else ())  # (): the recipe's
    return given | {"scopes": chosen, "filters": Filters(**filters)}


@command("Ranked hits: facts, entities, episodes.")
@click.argument("query", type=TEXT)
@group_option
@as_of_option
@known_at_option
@filter_options
@click.option("--limit", type=int, default=10, metavar="N", help="Length of the list. Default: 10.")
@click.option("--recipe", default="hybrid", metavar="R", help="How to search: docs/searching.md has them.")
@click.option("--explain", is_flag=True, help="Also print what found each hit, and what was left out.")
def search(call: Call, query: str, group: str, explain: bool, **given: Any) -> int:  # noqa: ANN401
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
    left = {"said_above": [dict(zip(_LEFT, row, strict=True)) for row in found.said_above]}
    answer = {"hits": shown, **(left if explain else {}), "took_ms": took_ms}
    return call.answer(answer, lambda: _print_hits(found, took_ms, explain=explain))


def _print_hits(found: Ranking, took_ms: float, *, explain: bool) -> None:
    """Print the hits; explain: with rank by method and signals of each, and with what was left out."""
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


def _say_unmet(memory: Memory, group: str, filters: Filters, hits: Sequence[Hit]) -> None:
    """Where nothing was found, say which values of the filters nothing in the group has."""
    from kgray.memory.naming import unmet

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


_context_options = together(
    click.option("--tokens", type=int, default=1500, metavar="N", help="Of the context. Default: 1500."),
    as_of_option,
    known_at_option,
    filter_options,
    click.option("--limit", type=int, metavar="N", help="Hits to choose from. Default: by the tokens."),
)


@command("The text to put into a prompt.")
@click.argument("query", type=TEXT)
@group_option
@_context_options
def context(call: Call, query: str, group: str, **given: Any) -> int:  # noqa: ANN401
    """Print what the memory holds on a question as a text for a prompt, within a budget of tokens.

    Facts ([1]) and messages (2) have numbers; --json lists the episodes that each stands for.

      kgray context "Where does Alice work?" --group team --tokens 800
    """
    asked, text = asked_of(given), query_from(query)
    with call.reader(group) as memory:
        built = finished(memory.context(text, group=group, **asked))
        _say_unmet(memory, group, asked["filters"], built.hits)

    def people() -> None:
        click.echo(built.text.encode())
        printing.note(printing.counted(built.tokens, "token"))

    return call.answer(built.as_dict(), people)


@command("An answer with citations; needs a model.")
@click.argument("question", type=TEXT)
@group_option
@_context_options
@click.option("--mode", type=click.Choice(("local", "global", "drift")), default="local", help="From what.")
@click.option("--suggest", is_flag=True, help="Print questions about QUESTION that the memory can answer.")
@click.option("--max-calls", type=int, metavar="N", help="Make no more model calls.")
@click.option("--max-tokens", type=int, metavar="N", help="Spend no more tokens: prompts and answers.")
def ask(call: Call, question: str, group: str, suggest: bool, **given: Any) -> int:  # noqa: ANN401
    """Answer a question from the memory alone. Behind each statement stand the numbers of its sources.

    What the memory does not hold is not guessed: the answer is "Not in memory.", and "found" is false. --mode
    local answers from a context, global from the communities, drift from what further questions find, too.

      kgray ask "Where does Alice work?" --group team --max-tokens 4000
      kgray ask "What does everybody work on?" --group team --mode global
    """
    asked, text = asked_of(given), query_from(question)
    if suggest:
        return _suggest(call, text, group, asked)
    streams = not call.as_json and sys.stdout.isatty()
    with call.reader(group) as memory:
        answered: Answered = finished(
            memory.ask(text, group=group, on_text=_show if streams else None, **asked)
        )
    if call.as_json:
        printing.emit_json(answered.as_dict())
    else:
        if not streams:
            _show(answered.text)
        click.echo()
        _sources(answered)
    for number in answered.dropped:
        printing.note(f"the model cited [{number}], which it was not shown: left out")
    if answered.found and not answered.citations:
        printing.note("the model cited nothing: nothing here says where its answer is from")
    cost = answered.cost
    tokens = printing.counted(cost.prompt_tokens + cost.completion_tokens, "token")
    printing.note(f"{printing.counted(cost.calls, 'call')}, {tokens}")
    return 0


def _suggest(call: Call, text: str, group: str, asked: dict[str, Any]) -> int:
    """Print questions that the memory can answer."""
    if asked.pop("mode") != "local" or asked.pop("max_calls") is not None:
        raise click.UsageError("--suggest is one call of its own: without --mode and --max-calls")
    with call.reader(group) as memory:
        found = finished(memory.suggest(text, group=group, **asked))
    nothing = "No questions: nothing in this group is about it."
    return call.answer(
        {"questions": found}, lambda: printing.table([[one] for one in found], nothing=nothing)
    )


def _show(piece: str) -> None:
    """Print a piece of an answer now, without control characters."""
    click.echo("\n".join(map(printing.plain, piece.split("\n"))).encode(), nl=False)


def _sources(answered: Answered) -> None:
    """Print what is cited: number, episode, text."""
    episodes: dict[int, str] = {}
    for number, episode, client in answered.citations:
        episodes.setdefault(number, client or printing.short(episode))
    hits = answered.context.cited
    if episodes:
        click.echo()
    for number, called in episodes.items():
        text = printing.plain(hits[number - 1].text)
        click.echo(f"[{number}] {printing.plain(called)}  {printing.fitted(text, _CITED)}".encode())


@command("The whole graph of a group, canonical.")
@group_option
@known_at_option
@click.option("--hash", "hashed", is_flag=True, help="Its SHA-256 in hex, alone on the line.")
def dump(call: Call, group: str, known_at: datetime | None, hashed: bool) -> int:
    """Print the whole graph of a group as sorted JSON lines: the same graph gives the same bytes.

    kgray dump --group team --hash
    """
    with call.reader(group) as memory:
        if hashed:
            click.echo(finished(memory.dump_hash(group=group, known_at=known_at)))
            return 0
        for line in finished(memory.dump(group=group, known_at=known_at)):
            click.echo(line.encode())
    return 0
