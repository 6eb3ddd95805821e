"""init, up, down, scale, status, failures, groups, doctor: a data folder, its actors, and its faults."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kgray.cli import printing
from kgray.cli.frame import Call, any_group_option, command, finished
from kgray.cli.grouping import schedule_rows
from kgray.cli.waiting import last_outage
from kgray.domain import times
from kgray.errors import DONE, FAULTY, INCOMPLETE, KgrayError, SettingsError

if TYPE_CHECKING:
    from kgray.memory import AsyncMemory
    from kgray.memory.results import StoredVectors
    from kgray.settings import Settings


@command("Make the data folder and its store.")
def init(call: Call) -> None:
    """Make the data folder and its store. Run again, it changes nothing.

    kgray init --data my-data
    """
    backend = call.settings().store.backend
    with call.memory(create=True) as memory:
        memory.check_embedder()
        version = memory.store.schema_version
    document = {"data": str(call.folder), "store": backend, "schema_version": version}
    if not call.emitted(document):
        click.echo(f"{call.folder} is ready ({backend}, schema {version}).")


@command("Start Ray and its actors.")
@click.option(
    "--profile", type=click.Path(path_type=Path), metavar="FILE", help="Sizes of the cluster: a TOML file."
)
def up(call: Call, profile: Path | None) -> None:
    """Start, or find, the actors that ingest the data folder, and Ray if it is not running.

    The actors stay when the command ends, and ingest the episodes that other commands accept; `kgray down`
    ends them. With runtime.address they start in the Ray at that address. A second run changes nothing, or,
    with other settings, replaces the affected actors one by one while episodes are ingested. If no schedule
    exists, the schedules of the profile's table [refresh] are added.

      kgray up --data my-data
    """
    from kgray.runtime import lifecycle, session

    settings = call.settings()
    if profile is not None:
        settings = replace(settings, runtime=replace(settings.runtime, profile=profile))
    with call.memory(create=True) as memory:
        memory.check_embedder()  # make the folder, and report a fault in it, before Ray is started
        profile_in_use = session.profile_for(settings, session.read_head(call.folder))
        added = memory.admin.schedules.add_first(**asdict(profile_in_use.refresh), now=times.now())
    with lifecycle.one_at_a_time(call.folder, printing.note):
        report = lifecycle.up(settings, call.folder, printing.note) | {"schedules": added}

    if call.emitted(report):
        return
    verb = "started" if report["started"] else "are up"
    click.echo(f"{printing.counted(len(report['actors']), 'actor')} {verb} at {report['address']}.")
    for name, keys in report["replaced"].items():
        click.echo(f"{name} was replaced: {', '.join(keys)} changed.")
    if report["ended"]:
        click.echo(f"Ended: {', '.join(report['ended'])}.")
    if report["jobs"]:
        click.echo(f"Jobs are submitted to {report['jobs']}.")
    if added:
        click.echo(f"Communities are refreshed by schedules that were added: {', '.join(added)}.")
    if settings.runtime.backend != "ray":
        printing.note('runtime.backend is "local": with "ray" other commands use these actors')


@command("End the actors, and the Ray that up started.")
def down(call: Call) -> None:
    """Commit the episodes in flight, then end the actors, and the Ray that `kgray up` started.

    Accepted episodes are safe: the next run ingests them.

      kgray down --data my-data
    """
    from kgray.runtime import lifecycle

    settings = call.settings()
    with lifecycle.one_at_a_time(call.folder, printing.note):
        ended = lifecycle.down(settings, call.folder, printing.note)
    line = f"{printing.counted(ended['actors'], 'actor')} and {ended['processes']} processes of Ray ended."
    if not call.emitted(ended):
        click.echo(line if any(ended.values()) else "Nothing is up.")


@command("Change the number of shards while the actors run.")
@click.option(
    "--shards", type=click.IntRange(1, 1024), required=True, metavar="N", help="How many: 1 to 1024."
)
def scale(call: Call, shards: int) -> None:
    """Change the number of shards of the actors of `kgray up` while episodes are ingested.

    Sequencers and writers are replaced one by one, and some groups move to other shards. Run it again if it
    was stopped or killed. Write the number into the profile too: a new start reads it from there.

      kgray scale --shards 4
    """
    from kgray.runtime import lifecycle

    settings = call.settings()
    with lifecycle.one_at_a_time(call.folder, printing.note):
        report = lifecycle.scale(settings, call.folder, shards, printing.note)
    if not call.emitted(dict(report)):
        moved = printing.counted(report["moved"], "slot")
        click.echo(f"{printing.counted(report['to'], 'shard')}, before {report['from']}; {moved} moved.")


@command("The ledger: episodes by state.")
@any_group_option
def status(call: Call, group: str | None) -> None:
    """Show the number of episodes in each state, the model's cost, and the graph's embedder.

    held: accepted and extracted episodes that wait because their group is held: see `kgray failures`.

      kgray status
    """
    from kgray.domain.json_form import as_json
    from kgray.runtime import lifecycle

    with call.reader(group, says_pending=False) as memory:
        ledger, vectors = finished(memory.status(group=group)), memory.admin.vectors()
        schedules, shards = schedule_rows(call, memory), memory.store.shard_map()
    runtime = lifecycle.status(call.settings(), call.folder)
    if runtime.get("state") == "up":
        counts_by_shard = Counter(shards.owners)
        runtime["slots"] = [counts_by_shard[shard] for shard in range(shards.shards)]
    outage = last_outage(call.folder, runtime.get("actors", {}).values())
    document: dict[str, Any] = as_json(ledger) | {"outage": outage, "runtime": runtime, "embedder": vectors}
    document["schedules"] = schedules
    if not call.emitted(document):
        _print_status(**document)


def _print_status(
    groups: dict[str, Any], model: dict[str, int], outage: dict[str, Any] | None, runtime: dict[str, Any],
    embedder: StoredVectors, schedules: list[dict[str, Any]],
) -> None:  # fmt: skip
    rows = [[name, *row.values()] for name, row in groups.items()]
    head = ("group", *next(iter(groups.values()), ()))
    printing.table(rows, head=head, nothing="No episodes.")
    click.echo(
        f"model: {printing.counted(model['calls'], 'call')}, "
        f"{model['prompt_tokens']} prompt tokens, {model['completion_tokens']} completion tokens"
    )
    click.echo(f"embedder: {embedder.name} ({embedder.dimensions} numbers a text)")
    if embedder.fault is not None:
        click.echo(f"no search, no new episodes: {printing.plain(embedder.fault)}")
    if outage is not None:
        over = f"until {outage['until']}" if outage["until"] else f"not over at {outage['seen']}"
        words = f"{outage['what']} {outage['reason']}, since {outage['since']}, {over}"
        click.echo(f"last outage: {printing.plain(words)}")
    for row in schedules:
        if row["failed"]:
            click.echo(
                printing.plain(f"schedule {row['name']}, {row['last']}: {row['said']} (job {row['job']})")
            )
    if "state" not in runtime:
        return
    head_line = f"ray at {runtime['address']}: {runtime['state']}"
    if runtime["state"] != "up":
        click.echo(f"{head_line}{': ' + runtime['reason'] if 'reason' in runtime else ''}")
        return
    unreachable = [name for name, row in runtime["actors"].items() if row.get("state") == "unreachable"]
    missing = f", not answering: {', '.join(unreachable)}" if unreachable else ""
    epochs = ", ".join(map(str, runtime["epochs"]))
    click.echo(
        f"{head_line}, {printing.counted(len(runtime['actors']), 'actor')}, epoch {epochs}, "
        f"{runtime['in_flight']} of {runtime['window']} in flight, lag {runtime['lag']}{missing}"
    )
    if len(runtime["slots"]) > 1:
        slots = ", ".join(map(str, runtime["slots"]))
        click.echo(f"{len(runtime['slots'])} shards, with {slots} slots")
    if (state := runtime["actors"].get("scheduler-0", {}).get("state", "")).startswith("faulty"):
        click.echo(f"no schedule is carried out: {printing.plain(state)}")
    for name, why in runtime["quarantined"].items():
        click.echo(f"quarantined, without work: {name}: {printing.plain(why)}")


@command("Failed episodes with their reasons.")
@any_group_option
def failures(call: Call, group: str | None) -> None:
    """List the episodes that failed because of their content, and the groups that are held (class Held).

    `kgray retry` retries both.

    --json gives the model's last reply too; so does `kgray show`.

      kgray failures --group team
    """
    with call.reader(group, says_pending=False) as memory:
        failed = finished(memory.failures(group=group))
    head = ("group", "episode", "attempts", "class", "message")
    rows = [
        [row.group, row.client_id or printing.short(row.id), row.attempts, row.kind, row.message]
        for row in failed
    ]
    call.listed("failures", failed, rows, head=head, nothing="No failed episodes.")


@command("Groups with their counts.")
def groups(call: Call) -> None:
    """List the groups.

    kgray groups
    """
    with call.memory() as memory:
        sizes = finished(memory.groups())
    head = ("group", "episodes", "entities", "facts")
    rows = [[getattr(size, name) for name in head] for size in sizes]
    call.listed("groups", sizes, rows, head=head, nothing="No groups.")


_PACKAGES = (
    "aiohttp apsw click cronsim dateparser httpx2 msgpack networkx numpy openai pyarrow pydantic "
    "snowballstemmer"
).split()
_ENGINE = ("settings", "data", "store", "fit")  # a fault here is exit 2: nothing can run
_ANSWER_S = 5.0  # to wait for an answer of each server
Check = tuple[str, bool, str]
_BACKENDS = {  # descriptions by section of the settings and backend; the section's values fill the braces
    "model": {
        "rules": "offline, demo quality: simple English sentences and JSON",
        "scripted": "answers from {0.script}",
        "openai": "{0.name} at {0.base_url}",
        "vllm": "{0.name} in Ray's actors",
    },
    "embedder": {
        "hashing": "offline, words and character n-grams: it knows no synonyms",
        "openai": "{0.name} at {0.base_url}",
        "minilm": "offline, all-MiniLM-L6-v2",
        "bge": "BGE-M3, in this process and in Ray's actors",
    },
    "reranker": {
        "none": "ranks are fused without one",
        "http": "{0.name} at {0.base_url}",
        "bge": "bge-reranker-v2-m3, in this process or in Ray's actors",
    },
    "runtime": {
        "local": "in this process",
        "ray": "in the actors of Ray, joined or started when there is work",
    },
    "store backend": {
        "sqlite": "one file in the data folder",
        "neo4j": "{0.uri}, with its lock and reports in the data folder",
    },
}


@command("What is installed, used, and missing.")
@click.option("--repair", is_flag=True, help="Derive groups again from their records, and store the result.")
@click.option("--group", metavar="G", help="With --repair: this group only.")
@click.option("--profile", metavar="FILE", type=Path, help="Say whether models fit on this profile's card.")
def doctor(call: Call, repair: bool, group: str | None, profile: Path | None) -> int:
    """Check the installation, the settings, the store, and the stored graph against its records.

    With --repair it first derives groups again from their records, sets aside records that contradict each
    other, and prints the differences.

      kgray doctor --data my-data
      kgray doctor --repair --group support
      kgray doctor --profile cluster/card-24gb.toml
    """
    if group is not None and not repair:
        raise click.UsageError("--group goes with --repair")
    repaired: dict[str, list[str]] = {}
    if repair:
        with call.memory() as memory:
            groups = [size.group for size in finished(memory.groups())] if group is None else [group]
            repaired = {name: finished(memory.admin.repair(name)) for name in groups}
    checks = list(_checks(call) if profile is None else _fit(call, profile))
    rows = [{"name": name, "ok": good, "detail": detail} for name, good, detail in checks]

    if not call.emitted({"checks": rows} | ({"repaired": repaired} if repair else {})):
        for name, lines in repaired.items():
            for line in lines or ["nothing differed from what its records derive"]:
                click.echo(f"repaired {name}: {line}")
        for name, good, detail in checks:
            mark = click.style("ok   ", fg="green") if good else click.style("WRONG", fg="red")
            click.echo(f"{mark}  {name:18}  {printing.plain(detail)}")
    wrong = [name for name, good, _ in checks if not good]
    if wrong:
        printing.note(f"{len(wrong)} of {printing.counted(len(checks), 'check')} failed: {', '.join(wrong)}")
    return FAULTY if set(wrong) & set(_ENGINE) else INCOMPLETE if wrong else DONE


def _fit(call: Call, path: Path) -> Iterator[Check]:
    from kgray.runtime.fit import table
    from kgray.runtime.spec import load_profile

    rows, faults = table(load_profile(path), call.settings())
    for model, size, detail in rows:
        yield model, True, f"{size:6.2f} GB; {detail}"
    yield "fit", not faults, "; ".join(faults) or "everything fits"
    if call.settings().model.backend == "vllm":
        yield from _engine_arguments(call, path)


def _engine_arguments(call: Call, path: Path) -> Iterator[Check]:
    """Yield each argument that an engine gets, and whether vLLM's parser takes them."""
    from kgray.models.engine_args import arguments_of, parsed
    from kgray.runtime.spec import load_profile

    name, limits = str(call.settings().model.name), load_profile(path).engine
    for argument, (value, source) in arguments_of(name, limits).items():
        yield f"--{argument.replace('_', '-')}", True, f"{value}; from {source}"
    if limits.batch_invariant:
        yield "VLLM_BATCH_INVARIANT", True, "1; from engine.batch_invariant"
    if find_spec("vllm") is None:
        yield "engine.args", True, "not checked: vLLM is not installed here; each worker checks at its start"
        return
    try:
        parsed(name, limits)
    except SettingsError as error:
        yield "engine.args", False, str(error)
    else:
        yield "engine.args", True, f"vLLM {metadata.version(_vllm())} takes them"


def _vllm() -> str:
    """Return the name of the installed distribution of vLLM: its build for processors has another."""
    return metadata.packages_distributions()["vllm"][0]


def _checks(call: Call) -> Iterator[Check]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield "python", sys.version_info >= (3, 11), f"{version} at {sys.executable}; 3.11 or newer is needed"
    for name in _PACKAGES:
        try:
            importlib.import_module(name)
            yield name, True, metadata.version(name)
        except (ImportError, metadata.PackageNotFoundError) as error:
            yield name, False, f"missing ({error}): run `make install`, or `pip install kgray` again"
    if engine := sys.modules.get("apsw"):
        yield "sqlite", True, f"{engine.sqlite_lib_version()}, bundled with apsw"
    try:
        settings = call.settings()
    except KgrayError as error:
        yield "settings", False, str(error)
        return
    yield from _chosen(call, settings)
    yield from _optional()
    yield from _data(call, settings)


def _chosen(call: Call, settings: Settings) -> Iterator[Check]:
    from kgray.settings import config_file, unbuilt

    config = config_file(call.config, call.folder, os.environ)
    lines = list(unbuilt(settings))
    named = {name for name in os.environ if name.startswith("KGRAY_")} - {"KGRAY_DATA", "KGRAY_CONFIG"}
    sources = [str(config) if config else "no kgray.toml", *sorted(named)]
    yield "settings", not lines, " ".join(lines) or f"defaults, then {', '.join(sources)}"
    for name, backends in _BACKENDS.items():
        chosen, good, answer, began = getattr(settings, name.split()[0]), True, "", time.monotonic()
        try:
            answer = "" if lines else _answer_of(name, settings)
        except KgrayError as error:
            good, answer = False, str(error)
        description = backends.get(chosen.backend, "not built in this version").format(chosen)
        detail = f"{chosen.backend}: {description}{f'; {answer} ({_took(began)})' if answer else ''}"
        yield name, chosen.backend in backends and good, detail


def _answer_of(name: str, settings: Settings) -> str:
    """Build the model, the embedder or the reranker, call it once, and describe its answer."""
    from kgray.runtime.wiring import (
        build_client,
        build_embedder,
        build_models,
        build_ontology,
        build_reranker,
    )

    if name == "model":
        build_models(settings, build_ontology(settings))
        remote = settings.model.backend == "openai"  # else in this process: there is nothing to reach
        return finished(build_client(settings, "model").check(_ANSWER_S)) if remote else ""
    if name == "embedder":
        embeds = build_embedder(settings)
        if settings.embedder.backend == "openai":
            return finished(build_client(settings, "embedder").check(_ANSWER_S))
        finished(embeds.embed(["a text"]))
        return "embeds a text"
    soon = replace(settings.model, timeout_s=_ANSWER_S, patience_s=1.0)
    if name == "reranker" and (scores := build_reranker(replace(settings, model=soon))) is not None:
        return f"scores a text {finished(scores.score('a text', ['a text']))[0]:.3f}"
    return ""


def _took(began: float) -> str:
    return f"{time.monotonic() - began:.2f} s"


def _optional() -> Iterator[Check]:

    from kgray.models import encoder, minilm, vllm_engine

    lacking = minilm.missing()
    yield "minilm", True, f"not installed ({lacking}): {minilm.HOW_TO_GET_IT}" if lacking else "installed"
    try:
        driver = f"{metadata.version('neo4j')}, with its codec {metadata.version('neo4j-rust-ext')}"
    except metadata.PackageNotFoundError as error:
        driver = f"not installed ({error.name}): for store.backend = neo4j run `pip install 'kgray[neo4j]'`"
    yield "neo4j driver", True, driver
    embeds = "installed" if find_spec(encoder.PACKAGE) else encoder.HOW_TO_GET_IT
    runs = "installed" if find_spec("vllm") else vllm_engine.HOW_TO_GET_IT
    yield "optional parts", True, f"BGE models: {embeds}; vLLM: {runs}"


def _data(call: Call, settings: Settings) -> Iterator[Check]:
    from kgray.storage.sqlite.schema import FILE, MARKER

    path = call.folder / FILE
    try:
        has_folder, stored = call.folder.exists(), path.exists() or path.with_name(MARKER).exists()
    except OSError as error:
        yield "data", False, f"{call.folder} cannot be read: {error.strerror or error}"
        return
    on_server = settings.store.backend == "neo4j"
    if not has_folder and not on_server:
        yield "data", True, f"{call.folder} is not there yet: `kgray init` makes it"
        return
    writable = not has_folder or os.access(call.folder, os.W_OK)
    yield "data", writable, f"{call.folder}{'' if writable else ' cannot be written: check its permissions'}"
    if not (stored or on_server):
        yield "store", True, f"no store in {call.folder} yet: `kgray init` makes it"
        return
    began = time.monotonic()
    try:
        with call.memory() as memory:
            yield from _store(memory, None if on_server else path, began)
    except KgrayError as error:
        yield "store", False, f"{error} ({_took(began)})"


def _store(memory: AsyncMemory, file: Path | None, began: float) -> Iterator[Check]:
    """Yield the checks of a store and its graphs. file: of an embedded store; began: start of its opening."""
    store: Any = memory.store  # without a file a Neo4jStore, which has further checks
    embedder, sizes = memory.embedder, finished(memory.groups())
    content = f"schema {store.schema_version}, {printing.counted(len(sizes), 'group')}"
    built = f"built with {embedder.identity} ({embedder.dimensions} numbers a text) ({_took(began)})"
    if file is not None:
        yield "store", True, f"{file} ({file.stat().st_size / 1e6:.1f} MB, {content}), {built}"
    else:
        yield "store", True, f"Neo4j {store.server} ({content}), {built}"
        missing = store.missing()
        detail = f"missing, broken or not online: {', '.join(missing)}; `kgray init` makes them again"
        yield "store indexes", not missing, detail if missing else "all constraints and indexes are online"
        store.check_writable()
        yield "store writable", True, "a transaction could write"
    for size in sizes:
        group = size.group
        wrong = finished(memory.admin.verify(group))
        detail = "; ".join(wrong[:3]) or "the stored graph is what its records derive"
        yield f"graph of {group}", not wrong, detail
