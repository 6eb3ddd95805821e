"""ask: an answer of a model from the memory, with its sources."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kgray.cli import printing
from kgray.cli.frame import TEXT, Call, command, finished, group_option, several, together
from kgray.cli.reading import context_options, query_from, recipe_options, search_arguments

if TYPE_CHECKING:
    from kgray.search.answering import Answered

_CITED = 100  # characters of a line that an answer cites
_MODES = click.Choice(("local", "keywords", "global", "drift"))
_options = together(
    click.option("--mode", type=_MODES, default="local", help="The source of the answer. Default: local."),
    several("--high", "high", metavar="WORDS", help="Mode keywords: a subject or relation, by hand."),
    several("--low", "low", metavar="NAME", help="Mode keywords: a name of an entity, by hand."),
    click.option("--level", type=click.IntRange(min=0), metavar="N", help="Mode global: 0 is the finest."),
    click.option("--min-rating", type=click.IntRange(0, 10), default=0, help="Mode global: least rating."),
    click.option(
        "--report-tokens", type=click.IntRange(min=100), default=50_000, metavar="N",
        help="Mode global: tokens of reports to read. Default: 50000.",
    ),
    click.option("--form", default="", metavar="WORDS", help='Form, such as "a list of 5 points".'),
    click.option("--history", type=click.Path(path_type=Path), metavar="FILE", help="Earlier turns."),
    click.option(
        "--history-tokens", type=click.IntRange(min=0), default=1000, metavar="N",
        help="Tokens of its newest turns. Default: 1000.",
    ),
    click.option("--general", is_flag=True, help="Allow general knowledge, marked as such."),
    click.option("--suggest", type=click.IntRange(0, 20), default=0, metavar="N", help="Add N questions."),
    click.option("--max-calls", type=int, metavar="N", help="Make no more model calls."),
    click.option("--max-tokens", type=int, metavar="N", help="Spend no more tokens: prompts and answers."),
)  # fmt: skip


@command("An answer with citations; needs a model.")
@click.argument("question", type=TEXT)
@group_option
@context_options
@recipe_options
@_options
def ask(call: Call, question: str, group: str, history: Path | None, **options: Any) -> None:  # noqa: ANN401
    """Answer a question from the memory. Each statement is followed by the numbers of its sources.

    The model does not guess: without an answer in the memory it says "Not in memory.", and "found" is false.
    Mode local answers from a context, keywords from matches of a model's or your keywords, global from the
    reports of all communities of a level, drift from the answers to further questions. --history reads a
    conversation from FILE (JSON lines of role and content), and adds this question and its answer to it.

      kgray ask "Where does Alice work?" --group team --max-tokens 4000
      kgray ask "And before that?" --group team --history talk.jsonl --suggest 3
      kgray ask "What does everybody work on?" --group team --mode global --level 1
    """
    from kgray.memory.asking import add_turns, read_turns

    arguments, text = search_arguments(options), query_from(question)
    if history is not None:
        arguments["history"] = read_turns(history)
    streams = not call.as_json and sys.stdout.isatty()
    with call.reader(group) as memory:
        answered = finished(memory.ask(text, group=group, on_text=_show if streams else None, **arguments))
    if history is not None:
        add_turns(history, text, answered.text)
    if not call.emitted(answered.as_dict()):
        if not streams:
            _show(answered.text)
        click.echo()
        _details(answered)
    _notes(answered)


def _show(piece: str) -> None:
    """Print a piece of an answer at once."""
    click.echo(printing.plain_lines(piece).encode(), nl=False)


def _details(answered: Answered) -> None:
    """Print each cited line with its number and source, and the suggested questions."""
    if answered.citations:
        click.echo()
    for number, hit in answered.sources:
        teller, client = next(iter(hit.told_by), ("", None))
        called = printing.plain(client or printing.short(teller))
        cited = printing.fitted(printing.plain(hit.text), _CITED)
        click.echo(f"[{number}] {called}  {cited}".encode())
    if answered.suggestions:
        click.echo("\nYou may go on with:")
    for question in answered.suggestions:
        click.echo(f"- {printing.plain(question)}".encode())


def _notes(answered: Answered) -> None:
    """Print notes about an answer: missing sources, the reports that were read, and the cost."""
    for number in answered.dropped:
        printing.note(f"the model cited [{number}], which is not in its context: left out")
    if answered.found and not answered.citations:
        printing.note("the model cited nothing: the source of its answer is not known")
    if answered.general:
        printing.note("statements marked [general knowledge] are not from the memory")
    if answered.keywords is not None:
        keyword_lists = (f"{name} {', '.join(words) or 'none'}" for name, words in answered.keywords.items())
        printing.note(f"keywords: {'; '.join(keyword_lists)}")
    if (reports := answered.reports) is not None:
        read, left_out = printing.counted(reports["read"], "report"), reports["left_out"]
        printing.note(
            f"{read} read, {left_out} left out; {printing.counted(reports['points'], 'point')} used"
        )
    cost = answered.cost
    tokens = printing.counted(cost.prompt_tokens + cost.completion_tokens, "token")
    printing.note(f"{printing.counted(cost.calls, 'call')}, {tokens}")
