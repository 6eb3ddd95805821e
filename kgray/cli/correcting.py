"""merge, distinct, split, undo: corrections with a place in the order; retract, remove: done at once."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import click

from kgray.cli import printing
from kgray.cli.frame import TEXT, Call, Signals, command, finished, group_option, several, together
from kgray.errors import InputError, exit_code_of

_BYTES_LEFT = {
    "sqlite": "a reader keeps the old pages in the files for now; run it again when it is gone",
    "neo4j": "no query finds it any more, but its bytes stay in the server's files, logs and backups until "
    "it writes over them; to be rid of them now, copy the groups into a new database and delete this one",
}
_SAID_APART = {"absent", "context_of", "reread"}
_SHOWN = 10  # of the episodes that are named


def _carried_out(call: Call, verb: str, *what: Any, **how: Any) -> int:  # noqa: ANN401 - the method's own
    """Call this method of the memory, print its result, and return the exit code."""
    with call.memory() as memory, Signals.gentle():
        result: dict[str, Any] = finished(getattr(memory, verb)(*what, **how, stop=Signals.asked))
    told = {name.replace("_", " "): value for name, value in result.items() if name not in _SAID_APART}
    told |= {name: ", ".join(value) for name, value in told.items() if isinstance(value, list | tuple)}
    call.answer(result, lambda: printing.pairs(told))
    if result.get("compacted") is False:
        printing.note(_BYTES_LEFT[call.settings().store.backend])
    again: Mapping[str, Any] = result.get("reread") or {}
    if context := result.get("context_of"):
        names = [str(row["client_id"] or row["id"]) for row in context]
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        read = f"{printing.counted(len(names), 'episode')} read with what was removed as context"
        kept = "what was understood then is kept; --reread reads them anew"
        done = f"{again['committed']} read anew, {again['failed']} failed" if again else kept
        printing.note(f"{read}: {', '.join(names[:_SHOWN])}{more}; {done}")
    if absent := result.get("absent"):
        printing.note(f"not there, so nothing was done about it: {', '.join(map(repr, absent))}")
    if again.get("stopped"):
        reason = f" ({again['reason']})" if again["reason"] else ""
        printing.note(f"stopped before all of it was read anew{reason}; the next add goes on")
    return exit_code_of(stopped=bool(again.get("stopped")), incomplete=bool(absent or again.get("failed")))


@command("Say that two entities are one.")
@click.argument("first", type=TEXT, metavar="NAME_OR_ID")
@click.argument("second", type=TEXT, metavar="NAME_OR_ID")
@group_option
def merge(call: Call, first: str, second: str, group: str) -> int:
    """Say that two entities are one. Nothing is lost: `kgray undo` takes it back.

    kgray merge "Bob Smith" 9f3e42d1 --group team
    """
    return _carried_out(call, "merge", first, second, group=group)


@command("Say that two entities are not one.")
@click.argument("first", type=TEXT, metavar="NAME_OR_ID")
@click.argument("second", type=TEXT, metavar="NAME_OR_ID")
@group_option
def distinct(call: Call, first: str, second: str, group: str) -> int:
    """Say that two entities are not one: neither is offered for the other again. `kgray undo` takes it back.

    kgray distinct 5b0c17aa 9f3e42d1 --group team
    """
    return _carried_out(call, "distinct", first, second, group=group)


@command("Say that some names are another entity.")
@click.argument("identifier", type=TEXT, metavar="NAME_OR_ID")
@several("--surface", "surfaces", required=True, metavar="S", help="A name as it was written; repeatable.")
@click.argument("more", nargs=-1, type=TEXT, metavar="[S]...")
@group_option
def split(call: Call, identifier: str, surfaces: tuple[str, ...], more: tuple[str, ...], group: str) -> int:
    """Say that the mentions with these surfaces are another entity.

    kgray split "Bob Smith" --surface "B. Smith" --group team
    """
    return _carried_out(call, "split", identifier, [*surfaces, *more], group=group)


@command("Take a merge or a split back.")
@click.argument("sequence", type=int)
@group_option
def undo(call: Call, sequence: int, group: str) -> int:
    """Take a merge or a split back, by the sequence that it printed.

    kgray undo 42 --group team
    """
    return _carried_out(call, "undo", sequence, group=group)


_choice = together(
    several("--episode", "episodes", metavar="ID", help="Ours or the client's; repeatable."),
    click.argument("more", nargs=-1, type=TEXT, metavar="[ID]..."),
    click.option("--source", type=TEXT, metavar="S", help="All of this source."),
    click.option("--all", "everything", is_flag=True, help="All of the group."),
    click.option("--yes", is_flag=True, help="Do not ask; needed where standard input is no terminal."),
)


@command("Take episodes out of what is true from now on.")
@group_option
@_choice
def retract(call: Call, group: str, **chosen: Any) -> int:  # noqa: ANN401
    """Take episodes out of what is derived from now on; reads with an earlier --known-at still see them.

    Done when it returns, without a model and whatever is pending. Exits 1 where something named is not there.

      kgray retract --group team --episode chat-17 --yes
    """
    return _take_out(call, "retract", group, chosen)


@command("Erase episodes with every trace.")
@group_option
@_choice
@click.option("--reread", is_flag=True, help="Read anew the episodes that a removed one was context of.")
def remove(call: Call, group: str, **chosen: Any) -> int:  # noqa: ANN401
    """Erase episodes with every trace of them. What they had closed reopens. There is no way back.

    Done when it returns, without a model and whatever is pending. Exits 1 where something named is not there.
    Episodes that were read with a removed one as context are named: what was understood of them is kept.

      kgray remove --group team --source chat.txt --yes
    """
    return _take_out(call, "remove", group, chosen)


def _take_out(call: Call, verb: str, group: str, chosen: dict[str, Any]) -> int:
    """Ask where the user has not said yes, and take out what is chosen. chosen: the options."""
    episodes, more, yes = (chosen.pop(name) for name in ("episodes", "more", "yes"))
    source, everything = chosen["source"], chosen["everything"]
    if sum((bool(episodes), source is not None, everything)) != 1 or (more and not episodes):
        raise InputError("say which episodes: --episode ID..., or --source S, or --all; one of these")
    ids = (*episodes, *more)
    if not yes:
        if sys.stdin is None or not sys.stdin.isatty():
            needs = f"kgray {verb} needs --yes where standard input is no terminal"
            raise InputError(f"{needs}; nothing was changed")
        some = f"source {source!r}" if source else "everything"
        what = printing.counted(len(ids), "episode") if ids else some
        if not click.confirm(f"{verb.capitalize()} {what} of group {group}?", err=True):
            raise InputError("nothing was changed")
    return _carried_out(call, verb, group=group, episodes=ids, **chosen)
