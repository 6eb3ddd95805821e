"""ontology suggest, check: what a person may declare of relation names, and what contradicts itself."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from kgray.cli import printing
from kgray.cli.frame import Call, command, finished, group_of, group_option
from kgray.errors import DONE, INCOMPLETE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kgray.memory.ontology_suggest import RelationSuggestion

_SENTENCE = 120  # characters of an example

ontology = group_of(
    "ontology",
    "Relation names: suggest, check.",
    "Suggest declarations of relation names, and check those of the settings.\n\n"
    "kgray ontology suggest --group team\nkgray ontology check",
)


@command("Relation names that you may declare.", of=ontology)
@group_option
@click.option("--limit", type=click.IntRange(min=1), default=50, metavar="N", help="Length. Default: 50.")
def suggest(call: Call, group: str, limit: int) -> None:
    """List names of which models answered alike at least three times, with the lines for your settings.

    Two names: independent (their statements were never exclusive), same_as, inverse_of (one statement under
    both names). One name: the cardinality single or many. What you declare is not asked again.

      kgray ontology suggest --group team
    """
    from kgray.memory.ontology_suggest import settings_of

    with call.reader(group) as memory:
        found = finished(memory.relation_suggestions(group=group, limit=limit))
    if call.emitted({"pairs": [one.as_dict() for one in found]}):
        return
    if not found:
        click.echo("No suggestions: no three answers about the same names agree.")
    for one in found:
        click.echo(click.style(_headline(one), bold=True).encode())
        for sentence in one.examples:
            click.echo(f"  {printing.fitted(printing.plain(sentence), _SENTENCE)}".encode())
    if found:
        printing.note("these lines declare all of them; take those that you agree with, into your settings:")
        click.echo()
        click.echo(settings_of(found).rstrip().encode())


def _headline(one: RelationSuggestion) -> str:
    name, counts = one.names[0], one.counts
    pairs = ", ".join(f"{counts[answer]} {answer}" for answer in counts if counts[answer])
    if one.kind == "cardinality":
        return f'{name}: cardinality "{one.value}" ({pairs})'
    return f"{name}: {one.kind} {one.names[1]} ({pairs})"


@command("Contradictions in your ontology.", of=ontology)
def check(call: Call) -> int:
    """Check the relations and types that the settings declare. Exits 1 where something contradicts itself.

    A note is no fault: something that may surprise.

      kgray ontology check --config kgray.toml
    """
    from kgray import wiring
    from kgray.memory.ontology_check import faults_of
    from kgray.settings import config_file

    settings = call.settings()
    file = config_file(call.config, call.folder, os.environ)
    found = faults_of(wiring.build_ontology(settings))
    rows = [(_place(one.key, file, os.environ) | {"message": one.message}, one.is_note) for one in found]
    faults, notes = ([row for row, is_note in rows if is_note is wanted] for wanted in (False, True))
    if not call.emitted({"faults": faults, "notes": notes}):
        for row, is_note in rows:
            what = "note" if is_note else "fault"
            click.echo(printing.plain(f"{what}: {row['file']}: {row['key']}: {row['message']}").encode())
        if not faults:
            click.echo("No faults.")
    if faults:
        printing.note(f"{printing.counted(len(faults), 'fault')} in the ontology of the settings")
    return INCOMPLETE if faults else DONE


def _place(key: str, file: Path | None, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the file and the key that a fault is about; a variable where that says it."""
    variable = f"KGRAY_{key.upper().replace('.', '_')}"
    if environ.get(variable):
        return {"file": "the environment", "key": variable}
    return {"file": str(file) if file is not None else "the environment", "key": key}
