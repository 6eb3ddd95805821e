"""serve, mcp: the memory for other programs and for agents. keys: access to the server."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kgray.cli import printing
from kgray.cli.frame import MOMENT, Call, Signals, command, finished, group_of, group_option, number, several
from kgray.domain import times

if TYPE_CHECKING:
    from kgray.memory import AsyncMemory


@command("Serve HTTP and MCP from one port.")
@click.option("--host", default="127.0.0.1", metavar="HOST", help="Address. All but loopback require keys.")
@click.option("--port", type=click.IntRange(0, 65535), default=8321, help="Default: 8321; 0: any free port.")
@several("--name", "names", metavar="NAME", help="Another host name of this server; repeatable.")
@click.option("--accept-only", is_flag=True, help="Do not ingest: another process does.")
@number("--max-pending", default=100_000, help="Pending episodes; more get 503.")
@number("--max-age", default=3600, metavar="S", help="Age of the oldest pending episode; then 503.")
@click.option(
    "--webhooks",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Post commits to webhooks; FILE has the key of their secrets, and is created if missing.",
)
@click.option("--private-webhooks", is_flag=True, help="Allow receivers with private addresses.")
def serve(
    call: Call, host: str, port: int, names: tuple[str, ...], accept_only: bool,
    webhooks: Path | None, private_webhooks: bool, **bounds: int,
) -> int:  # fmt: skip
    """Serve a page (/), HTTP (/v1/...) and MCP (/mcp/GROUP) until SIGTERM, and ingest added episodes.

    Without keys, only this machine is served, with the rights of the command line. `kgray keys add` makes
    keys; if any key exists, every request needs a key.

      kgray serve --port 8321
      curl -d '{"text": "I work at Acme now", "speaker": "Alice"}' localhost:8321/v1/groups/team/episodes
    """
    from kgray.runtime.wiring import needed_by

    with needed_by("this", "serve"):
        from kgray.server.app import create_app
        from kgray.server.door import Bounds
        from kgray.server.page_files import missing
        from kgray.server.protocol import server_of
        from kgray.server.webhooks import key_in
    from kgray.runtime import lifecycle

    settings = call.settings()
    backends = {settings.store.backend, settings.embedder.backend, settings.reranker.backend}
    reader_bound = (
        {} if backends.isdisjoint(("neo4j", "openai", "http")) else {"readers": 8}
    )  # reads wait for these servers
    limits = Bounds(max_pending=bounds["max_pending"], max_age_s=bounds["max_age"], **reader_bound)
    posts: dict[str, Any] = {
        "webhook_key": webhooks and key_in(webhooks),
        "private_webhooks": private_webhooks,
    }
    posts["runtime"] = lambda: lifecycle.status(settings, call.folder)
    if fault := missing():
        printing.note(fault)
    with call.memory(create=True) as memory:
        _say_fault(memory)
        # Before `gentle`: the server does not notice a signal that arrives while the app is made.
        app = create_app(memory, host=host, names=names, bounds=limits, ingests=not accept_only, **posts)
        with Signals.gentle():
            # With three busy threads an answer took 4.6 ms, with Python's default of 5 ms it took 30 ms; the
            # threads did as much work.
            sys.setswitchinterval(0.0005)
            server = server_of(app, host, port, lambda address: click.echo(f"kgray serves {address}"))
            server.run()
    return 0 if server.started else 1


@command("An MCP server on stdin and stdout.")
@group_option
@click.option("--read-only", is_flag=True, help="Omit the tools that add and forget.")
def mcp(call: Call, group: str, read_only: bool) -> None:
    """Serve a group to an agent by the Model Context Protocol, on standard input and output.

    docs/mcp.md has the settings of the usual clients.

      kgray mcp --group team
    """
    from kgray.runtime.wiring import needed_by

    with needed_by("this", "mcp"):
        from kgray.server.mcp import serve_stdio
    with call.memory(create=True) as memory, Signals.gentle():
        _say_fault(memory)
        finished(serve_stdio(memory, group, read_only=read_only))


def _say_fault(memory: AsyncMemory) -> None:
    if fault := memory.admin.vectors().fault:
        printing.note(f"reads that need the embedder fail: {fault}")


keys = group_of(
    "keys",
    "Keys of the HTTP server.",
    "Make, list and revoke keys of the HTTP server. A key is printed once; only its digest is stored.\n\n"
    "kgray keys add --groups team --scopes read,add",
)


@command("Make a key; it is printed once.", parent=keys)
@click.option(
    "--groups", required=True, metavar="G,...", help="Names; PREFIX/*: all with this prefix; *: all."
)
@click.option("--scopes", required=True, metavar="S,...", help="Some of read, add, correct, remove, admin.")
@click.option("--expires", type=MOMENT, metavar="T", help="Default: never.")
@click.option("--rate", type=int, metavar="N", help="Requests a second, at most.")
def add(call: Call, groups: str, scopes: str, expires: datetime | None, rate: int | None) -> None:
    """Make a key for groups and scopes. If any key exists, every request to the server needs a key.

    kgray keys add --groups team,project-/* --scopes read,add --expires 2027-01-01
    """
    with call.memory(create=True) as memory:
        ends_at = None if expires is None else times.from_datetime(expires)
        made = memory.admin.access.add(_listed(groups), _listed(scopes), expires=ends_at, rate=rate)
    if not call.emitted(made):
        click.echo(made.key)
        printing.note(f"key {made.id}; it is not shown again")


@command("The keys, without their secrets.", name="list", parent=keys)
def list_keys(call: Call) -> None:
    """List the keys with their groups, scopes and ends.

    kgray keys list
    """
    with call.memory() as memory:
        rows_of_keys = [key.as_dict() for key in memory.admin.access.every()]
    rows = [
        [key["id"], ",".join(key["groups"]), ",".join(key["scopes"]), key["rate"] or "", end]
        for key in rows_of_keys
        for end in [f"revoked {key['revoked_at']}" if key["revoked_at"] else key["expires_at"] or ""]
    ]
    head = ("id", "groups", "scopes", "rate", "ends")
    call.listed("keys", rows_of_keys, rows, head=head, nothing="No keys.")


@command("Revoke a key.", parent=keys)
@click.argument("identifier", metavar="ID")
def revoke(call: Call, identifier: str) -> None:
    """Revoke a key for good; a running server refuses it within a second.

    kgray keys revoke 0f3a9c21b7de
    """
    with call.memory() as memory:
        memory.admin.access.revoke(identifier)
    if not call.emitted({"id": identifier, "revoked": True}):
        click.echo(f"{identifier} is revoked.")


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
