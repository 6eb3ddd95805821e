"""The one door for Python code: `kgray.open(...)`."""

from __future__ import annotations

import os
from typing import Any

from kgray.memory import Memory
from kgray.settings import config_file, data_folder, load
from kgray.wiring import build_parts


def open(  # noqa: A001 - the verb a user expects: kgray.open(...)
    data: str | os.PathLike[str] | None = None,
    *,
    config: str | os.PathLike[str] | None = None,
    create: bool = True,
    **settings: Any,  # noqa: ANN401 - a value of any setting
) -> Memory:
    """Open the memory in a data folder; `with` gives blocking verbs, `async with` awaitable ones.

        with kgray.open("my-data") as memory:
            memory.add("I work at Acme now", group="demo", speaker="Alice")
            for hit in memory.search("Where does Alice work?", group="demo"):
                print(hit.text)

    data      default: KGRAY_DATA, else ./kgray-data
    config    default: KGRAY_CONFIG, else kgray.toml in the data folder, then in the current one
    create    make the folder and its store where there are none
    settings  keys with an underscore for the dot (model_backend="scripted"); these win

    Raises SettingsError, NotBuilt, StoreError.
    """
    folder = data_folder(data, os.environ)
    chosen = load(config_file(config, folder, os.environ), overrides=settings)
    if chosen.runtime.backend == "local":
        return Memory(build_parts(chosen, folder, create=create), data=folder)
    from kgray.runtime import profile
    from kgray.runtime.ingest import RayIngest

    profile.chosen(chosen)  # what is wrong with it is said before anything is made or accepted
    parts = build_parts(chosen, folder, create=create)
    return Memory(parts, RayIngest(chosen, folder, parts.store), data=folder)
