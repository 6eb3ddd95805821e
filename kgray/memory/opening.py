"""`kgray.open` and `kgray.open_async`: the entries for Python code."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from kgray.memory import AsyncMemory, Memory
from kgray.runtime import wiring
from kgray.settings import Settings, config_file, data_folder, load, require_built


def open(  # noqa: A001 - the verb a user expects: kgray.open(...)
    data: str | os.PathLike[str] | None = None,
    *,
    config: str | os.PathLike[str] | None = None,
    create: bool = False,
    settings: Mapping[str, object] | None = None,
) -> Memory:
    """Open the memory in a data folder; its methods block.

        with kgray.open("my-data", create=True) as memory:
            memory.add("I work at Acme now", group="demo", speaker="Alice")
            for hit in memory.search("Where does Alice work?", group="demo"):
                print(hit.text)

    data      default: KGRAY_DATA, else ./kgray-data
    config    default: KGRAY_CONFIG, else kgray.toml in the data folder, then in the current one
    create    make the folder and its store if they do not exist
    settings  values by key, as {"model.backend": "scripted"}; these win. Methods that need an embedder refuse
              an embedder that is not the store's: status, dump, history and others need none

    Raises NoStore without a store, SettingsError, NotBuilt, StoreError.
    """
    return Memory(open_async(data, config=config, create=create, settings=settings))


def open_async(
    data: str | os.PathLike[str] | None = None,
    *,
    config: str | os.PathLike[str] | None = None,
    create: bool = False,
    settings: Mapping[str, object] | None = None,
) -> AsyncMemory:
    """Open the memory in a data folder; its methods are awaited. Arguments and errors: as of `open`."""
    folder = data_folder(data, os.environ)
    return open_with(load(config_file(config, folder, os.environ), overrides=settings), folder, create=create)


def open_with(settings: Settings, folder: Path, *, create: bool) -> AsyncMemory:
    """Open a memory with exactly these settings; arguments and errors: see `open`."""
    on_ray = settings.runtime.backend != "local"
    if on_ray:
        from kgray.runtime.spec import load_profile

        load_profile(settings.runtime.profile)  # report an error in it before anything is created or accepted
    # Report faults in the models' settings too. The rules use only the ontology's settings, and load slowly.
    require_built(settings)
    ontology = wiring.build_ontology(settings)
    if settings.model.backend != "rules":
        wiring.build_models(settings, ontology)
    reranker = wiring.build_reranker(settings)
    reader = wiring.open_reader(settings, folder, create=create)
    ingest = None
    if on_ray:
        from kgray.runtime.ingest import RayIngest

        ingest = RayIngest(settings, folder, reader.store)
        reranker = ingest.reranker(reranker)
    memory = AsyncMemory(
        reader.store,
        lambda: reader.embedder if ingest is None else ingest.embedder(reader.embedder),
        partial(wiring.ingesting, reader),
        ingest=ingest,
        data=folder,
        previous=settings.pipeline.previous_episodes,
        answerer=partial(wiring.build_answerer, settings) if ingest is None else ingest.answerer,
        summarizer=partial(wiring.build_summarizer, settings) if ingest is None else ingest.summarizer,
        reranker=reranker,
        ontology=lambda: ontology,
    )
    if ingest is not None:
        memory.clustering, memory.groups_at_once = ingest.cluster, 8  # whose communities are found at once
    return memory
