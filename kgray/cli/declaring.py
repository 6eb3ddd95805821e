"""ontology suggest, check: declarations that a person may add, and contradictions between declarations."""

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


@command("Relation names that you may declare.", parent=ontology)
@group_option
@click.option("--limit", type=click.IntRange(min=1), default=50, metavar="N", help="Length. Default: 50.")
def suggest(call: Call, group: str, limit: int) -> None:
    """List relation names with three or more equal answers of models, with the lines for your settings.

    Two names: independent (their statements were never exclusive), same_as, inverse_of (one statement under
    both names). One name: the cardinality single or many. No model is asked about declared names again.

      kgray ontology suggest --group team
    """
    from kgray.memory.ontology_suggest import settings_of

    with call.reader(group) as memory:
        suggestions = finished(memory.admin.relation_suggestions(group=group, limit=limit))
    if call.emitted({"pairs": [suggestion.as_dict() for suggestion in suggestions]}):
        return
    if not suggestions:
        click.echo("No suggestions: no three answers about the same names agree.")
        return
    for suggestion in suggestions:
        click.echo(click.style(_headline(suggestion), bold=True).encode())
        for sentence in suggestion.examples:
            click.echo(f"  {printing.fitted(printing.plain(sentence), _SENTENCE)}".encode())
    printing.note(
        "the lines below declare all of them: copy the lines that you agree with into your settings"
    )
    click.echo()
    click.echo(settings_of(suggestions).rstrip().encode())


def _headline(suggestion: RelationSuggestion) -> str:
    name = suggestion.names[0]
    counts = ", ".join(f"{count} {answer}" for answer, count in suggestion.counts.items() if count)
    if suggestion.kind == "cardinality":
        return f'{name}: cardinality "{suggestion.value}" ({counts})'
    return f"{name}: {suggestion.kind} {suggestion.names[1]} ({counts})"


@command("Contradictions in your ontology.", parent=ontology)
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
    rows: dict[bool, list[dict[str, Any]]] = {False: [], True: []}  # of faults, of notes
    for fault in faults_of(wiring.build_ontology(settings)):
        rows[fault.is_note].append(_place(fault.key, file, os.environ) | {"message": fault.message})
    faults, notes = rows[False], rows[True]
    if not call.emitted({"faults": faults, "notes": notes}):
        lines = [("fault", row) for row in faults] + [("note", row) for row in notes]
        for word, row in lines:
            click.echo(printing.plain(f"{word}: {row['file']}: {row['key']}: {row['message']}").encode())
        if not faults:
            click.echo("No faults.")
    if faults:
        printing.note(f"{printing.counted(len(faults), 'fault')} in the ontology of the settings")
    return INCOMPLETE if faults else DONE


def _place(key: str, file: Path | None, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the file and the key of a fault; of a key that a variable sets, the variable."""
    variable = f"KGRAY_{key.upper().replace('.', '_')}"
    if environ.get(variable):
        return {"file": "the environment", "key": variable}
    return {"file": str(file) if file is not None else "the environment", "key": key}
