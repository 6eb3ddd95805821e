"""communities: find them, list them, show one."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from kgray.cli import printing
from kgray.cli.frame import GROUP, TEXT, Call, command, finished, group_of, group_option, known_at_option
from kgray.cli.progress import Progress

if TYPE_CHECKING:
    from kgray.communities.reading import ShownCommunity
    from kgray.communities.refresh import Refreshed

_HEAD = ("group", "run", "levels", "communities", "kept", "written", "offline", "calls", "tokens")


communities = group_of(
    "communities",
    "What belongs together: refresh, list, show.",
    "Find, list and show communities: entities that belong together, with names and summaries.\n\n"
    "kgray communities refresh --group team\nkgray communities list --group team",
)


@command("Find, name and summarise communities.", of=communities)
@click.option("--group", "groups", multiple=True, type=GROUP, metavar="G", help="Only this; repeatable.")
@click.option("--cold", is_flag=True, help="From nothing, not from what was found last time.")
@click.option("--due", is_flag=True, help="Only groups of which a tenth is new.")
@click.option("--profiles", is_flag=True, help="Have the model write of entities with 5 facts, too.")
@click.option("--max-tokens", type=click.IntRange(min=1), metavar="N", help="Spend no more tokens.")
@click.option("--dry-run", is_flag=True, help="Say which model calls it would make; change nothing.")
def refresh(call: Call, groups: tuple[str, ...], **how: Any) -> int:  # noqa: ANN401
    """Find communities anew, and write their names and summaries, of all groups or those named.

    Where a model is configured it writes, else a text is made without one. What has not changed is kept
    and costs no call. Readers see the earlier communities until all of a group's new ones are there.

      kgray communities refresh --group team --max-tokens 200000
    """
    with call.memory() as memory, Progress() as progress:

        def told(_group: str, _number: int, count: int) -> None:
            progress.total = count
            progress.step("refreshed")

        found = finished(memory.refresh_communities(groups, **how, on_group=told))
    document = {"groups": {group: asdict(done) for group, done in found.items()}}
    return call.answer(document, lambda: _print_refreshed(found, dry_run=how["dry_run"]))


def _print_refreshed(found: dict[str, Refreshed], *, dry_run: bool) -> None:
    rows = [
        [group, d.run, d.levels, d.communities, d.kept, d.written, d.offline, d.calls, tokens]
        for group, d in found.items()
        for tokens in [d.prompt_tokens + d.completion_tokens]
    ]
    printing.table(rows, head=_HEAD, nothing="No groups.")
    if dry_run:
        printing.note("nothing was changed; calls and tokens are what it would take at most")


@command("The communities of a group.", name="list", of=communities)
@group_option
@click.option("--level", type=click.IntRange(min=0), metavar="N", help="Of this level; 0 is the finest.")
@known_at_option
def list_(call: Call, group: str, **how: Any) -> int:  # noqa: ANN401
    """List the communities, by level, the largest first.

    kgray communities list --group team --level 0
    """
    with call.reader(group) as memory:
        found = finished(memory.communities(group=group, **how))
    rows = [
        [printing.short(one.id), one.level, one.size, "stale" if one.stale else "", one.name] for one in found
    ]
    nothing = "No communities: `kgray communities refresh` finds them."
    styles = (printing.DIM, None, None, printing.DIM, printing.BOLD)
    head = ("id", "level", "members", "", "name")
    listed = {"communities": [one.as_dict() for one in found]}
    return call.answer(listed, lambda: printing.table(rows, head=head, styles=styles, nothing=nothing))


@command("One community with its members.", of=communities)
@click.argument("identifier", type=TEXT, metavar="ID")
@group_option
@known_at_option
def show(call: Call, identifier: str, group: str, **how: Any) -> int:  # noqa: ANN401
    """Show a community with its summary and its members. ID: its id, or the beginning of it.

    `kgray history NAME` shows the facts of a member, and who said them.

      kgray communities show 6550e080 --group team
    """
    with call.reader(group) as memory:
        found = finished(memory.community(identifier, group=group, **how))
    return call.answer(found.as_dict(), lambda: _print_shown(found))


def _print_shown(found: ShownCommunity) -> None:
    one = found.community
    click.echo(click.style(printing.plain(one.name), bold=True) + f"  {printing.short(one.id)}")
    stale = ", stale: facts of its members have changed since" if one.stale else ""
    click.echo(f"  level {one.level}, as of {printing.moment(found.as_of)}{stale}")
    if one.summary:
        click.echo(f"  {printing.plain(one.summary)}")
    if "rating" in one.report:
        click.echo(f"  rating {one.report['rating']}: {printing.plain(one.report.get('reason', ''))}")
    for finding in one.report.get("findings", ()):
        cited = ", ".join(printing.short(fact) for fact in finding["facts"])
        click.echo(f"  - {printing.plain(finding['summary'])}{f' [{cited}]' if cited else ''}")
    printing.table([[printing.short(child.id), child.size, child.name] for child in found.children])
    printing.table([[printing.short(id_), name] for id_, name in found.members], head=("id", "member"))
