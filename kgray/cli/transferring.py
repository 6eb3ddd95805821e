"""copy: a group into another store. import: another program's memory into a group."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any

import click

from kgray.cli import printing
from kgray.cli.frame import TEXT, Call, Signals, command, finished, group_option
from kgray.cli.outcome import print_counts, say_end
from kgray.cli.progress import Progress
from kgray.errors import InputError, KgrayError

if TYPE_CHECKING:
    from kgray.memory import Report
    from kgray.settings import Settings
    from kgray.transfer.copying import Copied
    from kgray.transfer.graphiti import Import

_FILE = click.Path(path_type=Path)
_STORE, _STORE_PASSWORD = "KGRAY_STORE_", "KGRAY_STORE_PASSWORD"
_PASSWORD = "NEO4J_PASSWORD"  # noqa: S105 - the variable's name, which Graphiti's own examples use


@command("Copy a group into another store.")
@group_option
@click.option("--to-data", metavar="DIR", type=TEXT, help="The target's data folder. Default: the source's.")
@click.option("--to-config", metavar="FILE", type=_FILE, help="The target's settings, such as its store.")
def copy(call: Call, group: str, to_data: str | None, to_config: Path | None) -> int:
    """Copy a group into a store that never had it: folder to folder, to Neo4j and back. Verified.

    The target's store is that of --to-config FILE, else of kgray.toml in --to-data DIR, else a folder's own
    file; KGRAY_STORE_* variables speak of the source, but KGRAY_STORE_PASSWORD of both. Everything that is
    kept goes along, record times included; then all rows and the graph, now and at earlier moments, are
    compared. The source stays as it is. Copying again compares again.

      kgray copy --group team --data my-data --to-config neo4j.toml
      kgray copy --group team --config neo4j.toml --to-data back
    """
    from kgray.transfer.copying import copy_group
    from kgray.wiring import open_reader

    if to_data is None and to_config is None:
        raise InputError("no target: name its folder by --to-data, its settings by --to-config, or both")
    folder = call.folder if to_data is None else Path(to_data)
    wanted = _settings_of_target(to_config, None if to_data is None else folder, os.environ)
    with (
        Progress() as progress,
        closing(open_reader(call.settings(), call.folder)) as source,
        _gone_if_it_fails(folder),
        closing(open_reader(wanted, folder, create=True)) as target,
    ):
        copied = copy_group(source, target, group, on_row=lambda: progress.step("row"))
        where = target.shown
    _print_copied(call, copied, where)
    return 0


@contextmanager
def _gone_if_it_fails(folder: Path) -> Iterator[None]:
    """Delete the target's folder after an error where it was made for it: a group that is copied is whole."""
    was_there = folder.exists()
    try:
        yield
    except KgrayError:
        if not was_there:
            rmtree(folder, ignore_errors=True)
        raise


def _print_copied(call: Call, copied: Copied, where: str) -> None:
    def people() -> None:
        did = "was there already" if copied.already else "is copied"
        there = f"{copied.group} {did}, in {printing.plain(where)}"
        click.echo(f"{there}: the same in every row, and the same graph")
        printing.pairs((name, f"{count:,}") for name, count in copied.rows.items() if name != "group")
        click.echo(f"graphs compared: now and at {copied.moments - 1} earlier moments")

    document = {"group": copied.group, "to": where, "already": copied.already, "rows": dict(copied.rows)}
    call.answer(document | {"moments": copied.moments}, people)
    if not copied.already:
        printing.note(f"the source is as it was; `kgray remove --group {copied.group} --all` takes it away")


_ABOUT = """Take over another program's memory.

\b
Example:
  kgray import graphiti bolt://localhost:7687 --group team

\b
It takes --data, --config, --json and --debug, as every command does.
"""


import_from = click.Group("import", help=_ABOUT, short_help="Take over another program's memory.")


@command("A Graphiti database on Neo4j.", of=import_from)
@click.argument("uri", type=TEXT)
@group_option
@click.option("--from-group", type=TEXT, metavar="ID", help="Its group_id. Default: the only one there is.")
@click.option("--user", type=TEXT, default="neo4j", show_default=True, metavar="U")
@click.option("--database", type=TEXT, metavar="D", help="Default: the user's own.")
@click.option("--password-file", type=TEXT, metavar="FILE", help=f"Default: {_PASSWORD} in the environment.")
@click.option("--replace", is_flag=True, help="Replace what was imported before and has changed there.")
def graphiti(
    call: Call, uri: str, group: str, from_group: str | None, replace: bool, **login: str | None
) -> int:
    """Read a Graphiti database (episodes, entities, facts) into a group; nothing is written to it.

    Each of its episodes becomes one of triples: its facts, with their spans and sentences. Its text is kept
    and found by a search of episodes, and no model reads it. What Graphiti recorded when is kept as
    metadata. Ids are Graphiti's, so importing again adds only what is new. What cannot be mapped is counted.

      NEO4J_PASSWORD=... kgray import graphiti bolt://localhost:7687 --group team --from-group main
    """
    from kgray.settings.checks import NEO4J_SCHEMES, is_address
    from kgray.wiring import needed_by

    with needed_by("kgray import graphiti", "neo4j"):
        from kgray.stores.neo4j.graphiti import GraphitiDatabase
        from kgray.transfer.graphiti import Import

    secret = _password(login["password_file"])
    if not is_address(uri, NEO4J_SCHEMES):
        raise InputError(
            f"the URI is not an address such as bolt://localhost:7687 ({', '.join(NEO4J_SCHEMES)}; a host; "
            f"no user or password: --user and {_PASSWORD} are for that)"
        )
    theirs = GraphitiDatabase(
        uri=uri, user=login["user"] or "neo4j", password=secret, database=login["database"]
    )
    with closing(theirs):
        chosen = _chosen(theirs.groups(), from_group)
        importing = Import(database=theirs, from_group=chosen, group=group)
        with call.memory(create=True) as memory, Signals.gentle(), Progress() as progress:
            report = finished(
                memory.add_many(
                    importing.drafts(),
                    replace=replace,
                    on_step=lambda _group, _sequence, outcome: progress.step(outcome),
                    stop=Signals.asked,
                )
            )
    return _print_imported(call, importing, report)


def _password(file: str | None) -> str:
    if file is None:
        found = os.environ.get(_PASSWORD)
        if not found:
            raise InputError(f"no password: set {_PASSWORD} in the environment, or name --password-file")
        return found
    try:
        return Path(file).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise InputError(f"--password-file {file!r} cannot be read: {reason}") from None


def _chosen(there: list[str], asked: str | None) -> str:
    if asked is not None:
        if asked not in there:
            raise InputError(f"no group_id {asked!r} in the database; it has {_listed(there)}")
        return asked
    if len(there) != 1:
        raise InputError(f"the database has {_listed(there)}: name one by --from-group")
    return there[0]


def _listed(there: list[str]) -> str:
    shown = ", ".join(map(repr, there[:10])) + (", ..." if len(there) > 10 else "")
    return f"the group_ids {shown}" if there else "no episode and no entity of Graphiti"


def _print_imported(call: Call, importing: Import, report: Report) -> int:
    code = report.exit_code or int(importing.lost > 0)
    call.code = code
    unmapped = dict(sorted(importing.unmapped.items()))
    document: dict[str, Any] = report.as_dict()
    document |= {"episodes": importing.episodes, "facts": importing.facts, "unmapped": unmapped}
    print_counts(call, document, report.refusals)
    if not call.as_json:
        click.echo(f"read: {importing.episodes} episodes, {importing.facts} facts")
        if unmapped:
            click.echo("not mapped:")
            printing.pairs((f"  {reason}", count) for reason, count in unmapped.items())
    say_end(report, refused=report.refused)
    if importing.lost and not report.stopped:
        printing.note(f"{printing.counted(importing.lost, 'fact')} could not be mapped")
    return code


def _settings_of_target(config: Path | None, data: Path | None, environ: Mapping[str, str]) -> Settings:
    """Return the target's settings: of its file, else of `kgray.toml` in its folder, else defaults.

    KGRAY_STORE_* variables are about the source, so they are ignored here, except that the password is used
    where the file names none. The other variables apply to both.
    """
    from kgray.settings import CONFIG_NAME, Secret, load

    if config is None and data is not None and (data / CONFIG_NAME).is_file():
        config = data / CONFIG_NAME
    others = {name: text for name, text in environ.items() if not name.startswith(_STORE)}
    settings = load(config, environ=others)
    chosen = settings.store
    if chosen.password is None and chosen.password_file is None and environ.get(_STORE_PASSWORD):
        settings = replace(settings, store=replace(chosen, password=Secret(environ[_STORE_PASSWORD])))
    return settings
