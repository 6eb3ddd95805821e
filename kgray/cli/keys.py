"""keys: who may ask the HTTP server for what."""

from __future__ import annotations

from datetime import datetime

import click

from kgray.cli import printing
from kgray.cli.frame import MOMENT, Call, command, group_of

keys = group_of(
    "keys",
    "Keys of the HTTP server.",
    "Make, list and revoke keys of the HTTP server. Only a key's digest is kept; it is shown once.\n\n"
    "kgray keys add --groups team --scopes read,add",
)


@command("Make a key; it is shown once.", of=keys)
@click.option("--groups", required=True, metavar="G,...", help="Names; PREFIX/*: all that begin so; *: all.")
@click.option("--scopes", required=True, metavar="S,...", help="Of read, add, correct, remove, admin.")
@click.option("--expires", type=MOMENT, metavar="T", help="Default: never.")
@click.option("--rate", type=int, metavar="N", help="At most so many requests a second.")
def add(call: Call, groups: str, scopes: str, expires: datetime | None, rate: int | None) -> int:
    """Make a key for groups and scopes. Once there is one, every request to the server needs one.

    kgray keys add --groups team,project-/* --scopes read,add --expires 2027-01-01
    """
    from kgray.times import from_datetime

    with call.memory(create=True) as memory:
        until = None if expires is None else from_datetime(expires)
        id_, key = memory.access.add(_listed(groups), _listed(scopes), expires=until, rate=rate)

    def people() -> None:
        click.echo(key)
        printing.note(f"key {id_}; it is not shown again")

    return call.answer({"id": id_, "key": key}, people)


@command("The keys, without their secrets.", name="list", of=keys)
def list_keys(call: Call) -> int:
    """List the keys with their groups, scopes and ends.

    kgray keys list
    """
    with call.memory() as memory:
        found = [key.as_dict() for key in memory.access.every()]
    ends = [f"revoked {k['revoked_at']}" if k["revoked_at"] else k["expires_at"] or "" for k in found]
    rows = [
        [key["id"], ",".join(key["groups"]), ",".join(key["scopes"]), key["rate"] or "", end]
        for key, end in zip(found, ends, strict=True)
    ]
    head = ("id", "groups", "scopes", "rate", "ends")
    return call.answer({"keys": found}, lambda: printing.table(rows, head=head, nothing="No keys."))


@command("Revoke a key.", of=keys)
@click.argument("identifier", metavar="ID")
def revoke(call: Call, identifier: str) -> int:
    """Revoke a key, for good; a server that runs knows of it within a second.

    kgray keys revoke 0f3a9c21b7de
    """
    with call.memory() as memory:
        memory.access.revoke(identifier)
    return call.answer({"id": identifier, "revoked": True}, lambda: click.echo(f"{identifier} is revoked."))


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
