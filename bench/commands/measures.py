"""bench quality, ingest, add, store, searches, serve, communities, models: how good and how fast."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from bench.commands.options import (
    choice,
    count,
    error_options,
    errors_of,
    file,
    latency_options,
    listed,
    number,
    numbers,
    out_option,
    plan_of,
    progress,
    seeds_option,
    show,
    store_option,
    world_options,
)
from kgray.cli.frame import Call, command

if TYPE_CHECKING:
    from bench.empty_stores import StoreKind
    from bench.random_models import Shape


@command("Ingest worlds and score the graphs.")
@seeds_option
@world_options
@error_options
@choice("--extraction", "combined", "separate")
@choice("--resolution", "batched", "per_node")
@choice("--embedder", "hashing", "minilm", text="Finds the statements that are compared.")
@click.option("--http", is_flag=True, help="Through a model server and the openai backend.")
@file("--out", "The figures and the first faults, as JSON.")
def quality(
    call: Call,
    seeds: tuple[int, ...],
    embedder: str,
    http: bool,
    out: Path | None,
    **options: Any,  # noqa: ANN401
) -> None:
    """Ingest generated worlds with a reader that knows them, and hold the graphs against their truth.

    python -m bench quality --seed 1 --seed 2 --seed 3 --http --out quality.json
    """
    from bench import quality as measured
    from kgray.models.hashing import HashingEmbedder
    from kgray.models.minilm import MiniLMEmbedder

    pipeline = {name: options.pop(name) for name in ("extraction", "resolution")}
    errors = errors_of(options)
    models = measured.over_http if http else measured.in_process
    results = [
        measured.run(
            plan_of(seed, options),
            pipeline,
            errors=errors,
            models=models,
            embedder=MiniLMEmbedder() if embedder == "minilm" else HashingEmbedder(),
            progress=progress,
        )
        for seed in seeds
    ]
    document = {"results": [asdict(result) for result in results]}
    show(call, document, out, lambda: measured.table(results))


@command("How full the runner keeps a model server.")
@seeds_option
@world_options
@count("--window", 128, "Episodes in flight.")
@latency_options(32, 0.15, 100.0)
@choice("--runtime", "local", "ray")
@count("--chunk", None, "Of calls and steps, on Ray. Default: as in use.")
@choice("--resolution", "batched", "per_node")
@file("--profile", "The cluster profile of the actors.")
@click.option("--refreshing", is_flag=True, help="Find communities meanwhile, in another process.")
@click.option("--cold", is_flag=True, help="After each world: one of 32 groups of 50 episodes.")
@out_option
def ingest(call: Call, seeds: tuple[int, ...], cold: bool, out: Path | None, **options: Any) -> None:  # noqa: ANN401
    """Ingest generated worlds through a simulated model server, against the ceiling of one call an episode.

    python -m bench ingest --episodes 1000 --window 128 --seed 1 --seed 2
    python -m bench ingest --runtime ray --streams 64 --window 256
    python -m bench ingest --runtime ray --episodes 1500 --cold
    """
    from bench import ingest as measured
    from bench.engine import Way, one_ray
    from tests.world import Latency

    latency = Latency(**{name: options.pop(name) for name in ("streams", "first_token_s", "tokens_per_s")})
    run_options = {name: options.pop(name) for name in ("profile", "refreshing")}
    setup = Way(**{name: options.pop(name) for name in ("runtime", "window", "chunk", "resolution")})
    with one_ray() if setup.runtime == "ray" else nullcontext():
        plans = [plan_of(seed, options) for seed in seeds]
        plans = [variant for plan in plans for variant in ((plan, measured.cold(plan)) if cold else (plan,))]
        results = [measured.run(plan, setup, latency=latency, **run_options) for plan in plans]
    document = {"results": [asdict(result) for result in results]}
    show(call, document, out, lambda: measured.table(results))


@command("How fast a store takes what a model that answers at once has read.")
@count("--episodes", 600, "Of a round, in all groups.")
@count("--groups", 1, "With 20 entities each, where there are several.")
@count("--rounds", 3, "Each with new groups and another seed.")
@count("--seed", 1, "Of the first round.")
@listed("--store", "sqlite", "sqlite, neo4j, or both: a new folder, and a server of its own.", "NAME,...")
@click.option(
    "--bare", is_flag=True, help="Then write the same rows to a second Neo4j server by its driver alone."
)
@out_option
def add(
    call: Call, episodes: int, groups: int, rounds: int, seed: int, store: str, bare: bool, out: Path | None
) -> None:
    """Ingest generated worlds with a perfect model in this process, and count the rows of an episode.

    python -m bench add --store sqlite,neo4j
    python -m bench add --store neo4j --episodes 1600 --groups 32 --bare
    """
    from bench import adding as measured
    from tests.world import WorldPlan

    plan = WorldPlan(seed=seed, episodes=episodes)
    if groups > 1:
        plan = replace(plan, groups=groups, entities=20 * groups)
    results = measured.run(_stores(store), plan, rounds=rounds, bare=bare, progress=progress)
    document = {"results": [asdict(result) for result in results]}
    show(call, document, out, lambda: measured.table(results))


@command("What a group costs as it grows.")
@listed("--sizes", "1000,10000", "Numbers of facts.")
@listed("--slots", "10,1000", "Values in one slot.")
@listed(
    "--store", "sqlite", "sqlite, neo4j, or both: on the server of the settings, else a new one.", "NAME,..."
)
@out_option
def store(call: Call, sizes: str, slots: str, store: str, out: Path | None) -> None:
    """Measure deciding, committing, loading, searching and the recall of vectors as one group grows.

    python -m bench store --sizes 1000,10000,100000 --slots 10,1000,10000
    python -m bench store --sizes 1000,10000 --store sqlite,neo4j
    """
    from bench import store as measured

    results = [
        measured.run(
            kind,
            numbers("--sizes", sizes, apart=measured.LEAST_SIZE),
            slots=numbers("--slots", slots, apart=51),  # 50 values are added to a slot to measure it
            settings=call.settings(),
            progress=progress,
        )
        for kind in _stores(store)
    ]
    document = {"results": [asdict(result) for result in results]}
    show(call, document, out, lambda: measured.table(results))


@command("Searches of a large group, alone and during ingestion.")
@count("--messages", 100_000, "Of the large group, each with a fact; one of 1,000 stands beside it.")
@count("--copies", 16, "The large group is so many times a smaller one, with other ids, names and times.")
@count("--searchers", 16, "Clients that search through a server at once.")
@number("--seconds", 20.0, "For which they do, alone and while another process ingests; 0: not at all.")
@listed("--store", "sqlite", "sqlite, neo4j, or both: on servers of their own.", "NAME,...")
@out_option
def searches(
    call: Call, messages: int, copies: int, searchers: int, seconds: float, store: str, out: Path | None
) -> None:
    """Measure searches: the first of a reader, later ones, after a commit, concurrent ones, and contexts.

    python -m bench searches --store sqlite,neo4j
    """
    from bench import searches as measured

    plan = measured.SearchPlan(
        stores=_stores(store), messages=messages, copies=copies, searchers=searchers, seconds=seconds
    )
    results = measured.run(plan, progress=progress)
    document = {"results": [asdict(result) for result in results]}
    show(call, document, out, lambda: measured.table(results))


def _stores(text: str) -> list[StoreKind]:
    """Return the stores of a list such as sqlite,neo4j."""
    kinds: list[StoreKind] = []
    for name in text.split(","):
        if name not in ("sqlite", "neo4j"):
            raise click.BadParameter(f"{name!r} is neither sqlite nor neo4j", param_hint="--store")
        kinds.append(name)  # type: ignore[arg-type]
    return kinds


def _floats(text: str, option: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",") if part]
    except ValueError:
        raise click.BadParameter("a list of numbers, such as 0.1,0.3", param_hint=option) from None


@command("How well communities are found.")
@count("--nodes", 10_000, "Entities of a graph.", minimum=100)
@listed("--mu", "0.1,0.2,0.3,0.4,0.5", "Shares of the edges that lead anywhere.")
@listed("--beside", "fast_label_propagation,asyn_lpa,louvain", "Algorithms of networkx.", "NAME,...")
@count("--seed", 1, "Of the graphs.")
@listed("--grown", "", "Instead: what is left of a run once such shares have come, as 0.01,0.1.")
@count("--groups", 0, "Instead: refresh so many groups of 100 entities through Ray.", minimum=0)
@out_option
def communities(
    call: Call, nodes: int, mu: str, beside: str, seed: int, grown: str, groups: int, out: Path | None
) -> None:
    """Find communities in generated graphs that have some, beside networkx's algorithms.

    python -m bench communities --nodes 100000 --mu 0.2,0.3 --beside fast_label_propagation
    """
    from bench import communities as measured

    shares, added = _floats(mu, "--mu"), _floats(grown, "--grown")
    results: list[Any] = []
    if groups:
        with TemporaryDirectory(prefix="kgray-") as folder:
            results.append(measured.many_groups(Path(folder), groups, 100, seed))
    elif added:
        results += [measured.grow(nodes, share, seed, addition) for share in shares for addition in added]
    else:
        results += measured.run(nodes, shares, seed, [name for name in beside.split(",") if name])
    document = {"results": [asdict(result) for result in results]}
    show(call, document, out, lambda: measured.table(results))


@command("What a server takes, and whether it loses any.")
@count("--clients", 64, "Clients that append.")
@count("--searchers", 16, "Clients that search meanwhile; 0: none.", minimum=0)
@count("--seconds", 60, "How long.")
@store_option
@click.option("--ray", is_flag=True, help="Only with ingestion, by a deployment of `kgray up`.")
@out_option
def serve(
    call: Call, clients: int, searchers: int, seconds: int, store: StoreKind, ray: bool, out: Path | None
) -> None:
    """Append to `kgray serve` on loopback, accepting alone, then ingesting too; kill it and look for losses.

    python -m bench serve --clients 64 --seconds 60
    python -m bench serve --ray --store neo4j
    """
    from bench import serving as measured

    load: dict[str, Any] = {"clients": clients, "searchers": searchers, "seconds": float(seconds)}
    load |= {"store": store, "ray": ray}
    variants = (True,) if ray else (False, True)
    results = [measured.run(ingests=ingests, progress=progress, **load) for ingests in variants]
    document = {"results": [asdict(result) for result in results]}
    show(call, document, out, lambda: measured.table(results))


@command("Models in the processes that run them: vLLM, BGE.")
@choice("--shape", "tiny", "real", text="Of the random weights.")
@listed("--parts", "embed,rerank,extract,ingest", "What is measured.", "NAME,...")
@count("--episodes", 20, "Of the ingest.")
@file("--folder", "For weights and store; new. Default: one that is removed.")
@file("--profile", "The cluster profile of the ingest's actors. Default: one for a processor.")
@out_option
def models(
    call: Call,
    shape: Shape,
    parts: str,
    episodes: int,
    folder: Path | None,
    profile: Path | None,
    out: Path | None,
) -> int:
    """Measure embedder, reranker, engine, and an ingest and a search with all, on random weights.

    It needs torch with FlagEmbedding and vLLM: the extra `gpu`, or the environment of `make test-vllm`.

      python -m bench models --parts embed,rerank
      python -m bench models --shape real --profile cluster/card-80gb.toml
    """
    from bench import models as measured

    chosen = parts.split(",")
    if unknown := set(chosen) - set(measured.PARTS):
        raise click.BadParameter(f"{', '.join(sorted(unknown))}: not a part", param_hint="--parts")
    with nullcontext(str(folder)) if folder else TemporaryDirectory() as place:
        figures = measured.measure(chosen, shape, Path(place), episodes=episodes, profile=profile)
    show(call, figures, out, lambda: measured.table(figures))
    return 1 if measured.faults(figures) else 0


COMMANDS = (quality, ingest, add, store, searches, serve, communities, models)
