"""merge, split, undo, retract, remove: corrections with a place in the group's order."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

from kgray.cli import printing
from kgray.cli.frame import TEXT, Call, Signals, common, finished, group_option
from kgray.errors import InputError

_Command = Callable[..., int | None]
_BYTES_LEFT = {
    "sqlite": "a reader keeps the old pages in the files for now; run it again when it is gone",
    "neo4j": "no query finds it any more, but its bytes stay in the server's files, logs and backups until "
    "it writes over them; to be rid of them now, copy the groups into a new database and delete this one",
}


def _print(call: Call, result: dict[str, Any]) -> int:
    if call.as_json:
        printing.emit_json(result)
    else:
        printing.pairs({name.replace("_", " "): value for name, value in result.items()})
    if result.get("compacted") is False:
        printing.note(_BYTES_LEFT[call.settings().store.backend])
    return 0


@click.command(short_help="Say that two entities are one.")
@click.argument("first", type=TEXT, metavar="ID")
@click.argument("second", type=TEXT, metavar="ID")
@group_option
@common
def merge(call: Call, first: str, second: str, group: str) -> int:
    r"""Say that two entities are one. Nothing is lost: `kgray undo` takes it back.

    \b
    Example:
      kgray merge 5b0c...-1 9f3e...-2 --group team
    """
    with call.memory() as memory, Signals.gentle():
        return _print(call, finished(memory.merge(first, second, group=group, stop=Signals.asked)))


@click.command(short_help="Say that some names are another entity.")
@click.argument("identifier", type=TEXT, metavar="ID")
@click.option(
    "--surface",
    "surfaces",
    multiple=True,
    required=True,
    type=TEXT,
    metavar="S",
    help="A name as it was written; repeatable.",
)
@click.argument("more", nargs=-1, type=TEXT, metavar="[S]...")
@group_option
@common
def split(call: Call, identifier: str, surfaces: tuple[str, ...], more: tuple[str, ...], group: str) -> int:
    r"""Say that the mentions with these surfaces are another entity.

    \b
    Example:
      kgray split 5b0c...-1 --surface "B. Smith" --group team
    """
    with call.memory() as memory, Signals.gentle():
        asked = memory.split(identifier, [*surfaces, *more], group=group, stop=Signals.asked)
        return _print(call, finished(asked))


@click.command(short_help="Take a merge or a split back.")
@click.argument("sequence", type=int)
@group_option
@common
def undo(call: Call, sequence: int, group: str) -> int:
    r"""Take a merge or a split back, by the sequence that it printed.

    \b
    Example:
      kgray undo 42 --group team
    """
    with call.memory() as memory, Signals.gentle():
        return _print(call, finished(memory.undo(sequence, group=group, stop=Signals.asked)))


def _choice(command: _Command) -> _Command:
    """Add the options that say which episodes."""
    options = (
        click.option(
            "--episode",
            "episodes",
            multiple=True,
            type=TEXT,
            metavar="ID",
            help="Ours or the client's; repeatable.",
        ),
        click.argument("more", nargs=-1, type=TEXT, metavar="[ID]..."),
        click.option("--source", type=TEXT, metavar="S", help="All of this source."),
        click.option("--all", "everything", is_flag=True, help="All of the group."),
        click.option("--yes", is_flag=True, help="Do not ask; needed where standard input is no terminal."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command(short_help="Take episodes out of what is true from now on.")
@group_option
@_choice
@common
def retract(call: Call, group: str, **chosen: Any) -> int:  # noqa: ANN401
    r"""Take episodes out of what is derived from now on; reads with an earlier --known-at still see them.

    \b
    Example:
      kgray retract --group team --episode chat-17 --yes
    """
    return _take_out(call, "retract", group, **chosen)


@click.command(short_help="Erase episodes with every trace.")
@group_option
@_choice
@common
def remove(call: Call, group: str, **chosen: Any) -> int:  # noqa: ANN401
    r"""Erase episodes with every trace of them. What they had closed reopens. There is no way back.

    \b
    Example:
      kgray remove --group team --source chat.txt --yes
    """
    return _take_out(call, "remove", group, **chosen)


def _take_out(
    call: Call,
    verb: str,
    group: str,
    *,
    episodes: tuple[str, ...],
    more: tuple[str, ...],
    source: str | None,
    everything: bool,
    yes: bool,
) -> int:
    if sum((bool(episodes), source is not None, everything)) != 1 or (more and not episodes):
        raise InputError("say which episodes: --episode ID..., or --source S, or --all; one of these")
    ids = (*episodes, *more)
    if not yes:
        _ask(verb, group, ids, source)
    with call.memory() as memory, Signals.gentle():
        method = memory.remove if verb == "remove" else memory.retract
        asked = method(group=group, episodes=ids, source=source, everything=everything, stop=Signals.asked)
        result = finished(asked)
    return _print(call, result)


def _ask(verb: str, group: str, ids: tuple[str, ...], source: str | None) -> None:
    if sys.stdin is None or not sys.stdin.isatty():
        raise InputError(f"kgray {verb} needs --yes where standard input is no terminal; nothing was changed")
    what = printing.counted(len(ids), "episode") if ids else f"source {source!r}" if source else "everything"
    if not click.confirm(f"{verb.capitalize()} {what} of group {group}?", err=True):
        raise InputError("nothing was changed")
