"""ask: an answer from what a group's memory holds, with citations."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from kgray.cli import printing
from kgray.cli.frame import TEXT, Call, as_of_option, common, finished, group_option, known_at_option
from kgray.cli.reading import asked_of, filter_options, query_from

if TYPE_CHECKING:
    from kgray.search.answering import Answered

_SHOWN = 100  # characters of a line that is cited


@click.command(short_help="An answer with citations; needs a model.")
@click.argument("question", type=TEXT)
@group_option
@click.option("--tokens", type=int, default=1500, metavar="N", help="Of the context. Default: 1500.")
@as_of_option
@known_at_option
@filter_options
@click.option("--limit", type=int, metavar="N", help="Hits to choose from. Default: by the tokens.")
@click.option("--max-calls", type=int, metavar="N", help="Make no more model calls.")
@click.option("--max-tokens", type=int, metavar="N", help="Spend no more tokens: prompt and answer.")
@common
def ask(call: Call, question: str, group: str, scopes: tuple[str, ...], **given: Any) -> int:  # noqa: ANN401
    r"""Answer a question from the memory alone. Behind each statement stand the numbers of its sources.

    What the memory does not hold is not guessed: the answer is "Not in memory.", and "found" is false.

    \b
    Example:
      kgray ask "Where does Alice work?" --group team --max-tokens 4000
    """
    asked, text = asked_of(scopes, given), query_from(question)
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
        click.echo(f"[{number}] {printing.plain(called)}  {printing.fitted(text, _SHOWN)}".encode())
