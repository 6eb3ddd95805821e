"""The parts of a process, built from its settings; only the chosen backends are imported."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kgray.errors import NoStore, SettingsError, StoreError
from kgray.settings import Settings, require, require_built
from kgray.settings.checks import Secret, is_sendable
from kgray.settings.engine import EngineLimits
from kgray.system import locks

if TYPE_CHECKING:
    from kgray.domain.ontology import Ontology
    from kgray.ingest.calls import Parts
    from kgray.ingest.steps import UnitSize
    from kgray.models.openai_api.client import Client
    from kgray.models.prompting.prompts import PromptFiles, Prompts
    from kgray.models.vllm_engine import EngineClient
    from kgray.ports import Answerer, Embedder, Extractor, Judge, Reranker, Store, Summarizer
    from kgray.storage.earlier import EarlierStore


@dataclass(frozen=True, kw_only=True)
class OpenStore:
    """An open store, and its embedder: the parts that reading needs."""

    settings: Settings
    folder: Path
    store: Store

    @cached_property
    def embedder(self) -> Embedder:
        """The embedder of the settings. Raises StoreError if another embedder made the store's vectors."""
        embedder, store = build_embedder(self.settings), self.store
        width = embedder.dimensions or store.dimensions  # some embedders know it only after the first text
        if (embedder.identity, width) != (store.embedder, store.dimensions):
            alike = embedder.identity.removesuffix("+sparse") == store.embedder.removesuffix("+sparse")
            raise StoreError(
                f"the embedder {embedder.identity!r} gives {width} numbers a text, but the graph in "
                f"{self.location} was built with {store.embedder!r} ({store.dimensions} numbers): set "
                f"{'embedder.sparse as it was' if alike else 'embedder.backend to that one'}, or start an "
                f"empty {'database' if store.remote else 'data folder'} and add the episodes again"
            )
        embedder.dimensions = width
        return embedder

    @property
    def location(self) -> str:
        """The store's location, for messages."""
        chosen = self.settings.store
        return str(self.folder) if chosen.backend == "sqlite" else f"{chosen.backend} at {chosen.uri}"

    def close(self) -> None:
        """Release the store."""
        self.store.close()


def open_reader(
    settings: Settings, data: Path, *, create: bool = False, cache_mb: int | None = None
) -> OpenStore:
    """Open the store without models; its embedder is built at its first use, or for a new store at once.

    Raises NoStore, StoreError, SettingsError.

    cache_mb: size of the embedded store's page cache; None = the size for a process that searches
    """
    require_built(settings)
    try:
        store = open_store(settings, data, None, create=create, cache_mb=cache_mb)
    except NoStore:
        if not create:
            raise
        embedder = build_embedder(settings)
        if not embedder.dimensions:
            with ThreadPoolExecutor(1) as executor:  # this thread may have a running event loop
                executor.submit(asyncio.run, embedder.embed(["a text"])).result()
        store = open_store(settings, data, embedder, create=True, cache_mb=cache_mb)
    return OpenStore(settings=settings, folder=data, store=store)


def ingesting(opened: OpenStore) -> Parts:
    """Return the parts that ingesting into an open store needs. Raises SettingsError."""
    from kgray.ingest.calls import Parts

    settings = opened.settings
    ontology = build_ontology(settings)
    extractor, judge = build_models(settings, ontology)
    return Parts(
        store=opened.store,
        extractor=extractor,
        judge=judge,
        embedder=opened.embedder,
        ontology=ontology,
        pipeline=settings.pipeline,
        units=_unit_size(settings),
        state_bytes=settings.runtime.state_mb << 20,
        patience_s=settings.model.patience_s,
        window=settings.runtime.window,
        streams=settings.model.max_concurrency,
    )


def _unit_size(settings: Settings) -> UnitSize | None:
    """Return the size of text units; None for models that read texts of any length equally well."""
    from kgray.ingest.steps import UnitSize

    chosen = settings.pipeline
    if settings.model.backend not in {"openai", "vllm"} or not chosen.unit_tokens:
        return None
    return UnitSize(chosen.unit_tokens, chosen.unit_overlap)


def open_store(
    settings: Settings, data: Path, embedder: Embedder | None, *, create: bool, cache_mb: int | None = None
) -> Store:
    """Open the store. embedder: for a new store; None: raise NoStore if no store exists."""
    vectors = (embedder.identity, embedder.dimensions) if embedder else ("", 0)
    if settings.store.backend == "sqlite":
        from kgray.storage.sqlite import CACHE_MB, open_sqlite

        return open_sqlite(
            data,
            embedder=vectors[0],
            dimensions=vectors[1],
            create=create,
            cache_mb=CACHE_MB if cache_mb is None else cache_mb,
        )
    with needed_by('store.backend = "neo4j"', "neo4j"):
        from kgray.storage.neo4j import open_neo4j
    store = open_neo4j(
        **_login(settings),
        embedder=vectors[0],
        dimensions=vectors[1],
        folder=data,
        create=create,
    )
    if create:
        try:
            locks.make_folder(data)  # for the lock, reports and settings
        except OSError as error:
            store.close()
            raise StoreError(f"{error.filename or data}: {error.strerror}") from None
    return store


@contextmanager
def open_earlier(settings: Settings, data: Path, *, alone: bool) -> Iterator[EarlierStore | None]:
    """Open the store of an earlier version; None if it has this version. alone: lock other processes out."""
    if settings.store.backend == "sqlite":
        from kgray.storage.sqlite.earlier import earlier_sqlite

        with earlier_sqlite(data, alone=alone) as store:
            yield store
        return
    with needed_by('store.backend = "neo4j"', "neo4j"):
        from kgray.storage.neo4j.earlier import earlier_neo4j
    with earlier_neo4j(alone=alone, **_login(settings)) as database:
        yield database


def _login(settings: Settings) -> dict[str, Any]:
    """Return the arguments of `open_neo4j` for the database and the login."""
    require(settings, "store")
    chosen = settings.store
    if chosen.password is not None:
        password = chosen.password.reveal()
    elif chosen.password_file is not None:
        password = _text_of("store.password_file", chosen.password_file).rstrip("\r\n")
    else:
        raise SettingsError(
            'store.backend = "neo4j" needs the password: KGRAY_STORE_PASSWORD in the environment, or '
            "store.password_file."
        )
    return {
        "uri": str(chosen.uri),
        "user": chosen.user or "neo4j",
        "password": password,
        "database": chosen.database,
    }


@contextmanager
def needed_by(feature: str, extra: str) -> Iterator[None]:
    """Raise SettingsError if an import inside fails. extra: kgray's extra that installs the package."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"{feature} needs the package {error.name}, which is not installed: pip install 'kgray[{extra}]'."
        ) from None


def build_ontology(settings: Settings) -> Ontology:
    """Return the shipped ontology, extended by the settings."""
    from kgray.domain.ontology import shipped

    declared = settings.ontology
    if not declared.relations and not declared.entities:
        return shipped()
    return shipped().extended(declared.relations, declared.entities)


def build_models(
    settings: Settings, ontology: Ontology, engine: Client | None = None
) -> tuple[Extractor, Judge]:
    """Return the extractor and the judge.

    engine: for `model.backend = "vllm"`, in an actor with an engine; other processes know only its name
    """
    require(settings, "model")
    if settings.model.backend == "scripted":
        from kgray.models.scripted import ScriptedExtractor, ScriptedJudge

        script = settings.model.script or Path()
        return ScriptedExtractor(script), ScriptedJudge(script)
    if settings.model.backend in {"openai", "vllm"}:
        from kgray.models.openai_api.extractor import OpenAIExtractor
        from kgray.models.openai_api.judge import OpenAIJudge

        chosen, prompts = settings.pipeline, build_prompts(settings, ontology)
        client = engine or _model_client(settings)
        separate, rounds = chosen.extraction == "separate", chosen.reflect_rounds
        extractor = OpenAIExtractor(client, prompts, separate=separate, reflect_rounds=rounds)
        return extractor, OpenAIJudge(client, prompts, apart=chosen.resolution == "per_node")
    from kgray.models.rules import RulesJudge
    from kgray.models.rules.extractor import RulesExtractor

    keys = [key.strip() for key in (settings.records.key or "").split(",") if key.strip()]
    return RulesExtractor(ontology, keys), RulesJudge()


def build_engine(
    settings: Settings, ontology: Ontology, limits: EngineLimits, on_dead: Callable[[], None]
) -> EngineClient | None:
    """Return the engine of `model.backend = "vllm"`, not yet started; None for another backend."""
    if settings.model.backend != "vllm":
        return None
    from kgray.models.vllm_engine import EngineClient

    require(settings, "model")
    prompts, model, chosen = build_prompts(settings, ontology), settings.model, settings.pipeline
    # The prompts for reading and judging an episode, each in a single call or in several.
    separate = ["extract_entities", "reflect", "extract_facts", "date_facts"]
    per_node = ["resolve_entity", "compare"]
    tasks = ["combined"] if chosen.extraction == "combined" else separate
    tasks += ["batched"] if chosen.resolution == "batched" else per_node
    return EngineClient(
        str(model.name),
        limits=limits,
        timeout_s=model.timeout_s,
        patience_s=model.patience_s,
        heads=[prompts[task].head for task in tasks],
        on_dead=on_dead,
    )


def build_answerer(settings: Settings, engine: Client | None = None) -> Answerer:
    """Return the model that answers users' questions. engine: see `build_models`.

    Raises SettingsError if no such model is configured. Without its engine, "vllm" raises it at a call.
    """
    require(settings, "model")
    if settings.model.backend == "scripted":
        from kgray.models.scripted import ScriptedAnswerer

        return ScriptedAnswerer(settings.model.script or Path())
    if settings.model.backend in {"openai", "vllm"}:
        from kgray.models.openai_api.writing import OpenAIAnswerer

        return OpenAIAnswerer(engine or _model_client(settings), build_prompt_files(settings))
    raise SettingsError(
        f'model.backend = "{settings.model.backend}" writes no answers: set model.backend = "openai" with '
        "model.base_url and model.name (KGRAY_MODEL_BACKEND, ...); kgray context needs no model."
    )


def build_summarizer(settings: Settings, engine: Client | None = None) -> Summarizer | None:
    """Return the summarizer of communities; None if no language model is configured. engine: see above."""
    if settings.model.backend not in {"openai", "vllm"}:
        return None
    require(settings, "model")
    from kgray.models.openai_api.writing import OpenAISummarizer

    return OpenAISummarizer(engine or _model_client(settings), build_prompt_files(settings))


def _model_client(settings: Settings) -> Client:
    if settings.model.backend == "vllm":
        from kgray.models.vllm_engine import AbsentEngine

        return AbsentEngine(str(settings.model.name))
    return build_client(settings, "model")


def build_prompt_files(settings: Settings) -> PromptFiles:
    """Return the texts of the prompts. Raises SettingsError for a wrong file in the user's folder."""
    from kgray.models.prompting.prompts import PromptFiles

    return PromptFiles(settings.prompts.folder)


def build_prompts(settings: Settings, ontology: Ontology) -> Prompts:
    """Return the prompts with these settings filled in: the same for every episode of a run."""
    from kgray.models.prompting.prompts import Prompts

    file = settings.model.instructions_file
    instructions = (_text_of("model.instructions_file", file) if file else None, settings.model.instructions)
    return Prompts(ontology, "\n\n".join(filter(None, instructions)), build_prompt_files(settings))


def build_embedder(settings: Settings, *, promised: str = "") -> Embedder:
    """Return the embedder. promised: the setting that promises a card to this process; "" = none does."""
    require(settings, "embedder")
    chosen = settings.embedder
    if chosen.backend == "openai":
        from kgray.models.openai_api.retrieval import OpenAIEmbedder

        return OpenAIEmbedder(build_client(settings, "embedder"), dimensions=chosen.dimensions or 0)
    if chosen.backend == "minilm":
        from kgray.models.minilm import DIMENSIONS, MiniLMEmbedder

        if chosen.dimensions not in (None, DIMENSIONS):
            raise SettingsError(
                f'embedder.dimensions = {chosen.dimensions}, but "minilm" gives {DIMENSIONS}: '
                "leave embedder.dimensions out."
            )
        return MiniLMEmbedder(Path(chosen.name) if chosen.name else None)
    if chosen.backend == "bge":
        from kgray.models.bge import EMBEDDER, BgeEmbedder
        from kgray.models.encoder import Placement, require_package

        if settings.runtime.backend == "local":  # else workers load it, not this process
            require_package("embedder")
        placement = Placement(device=chosen.device, precision=chosen.precision, promised=promised)
        return BgeEmbedder(
            chosen.name or EMBEDDER, dimensions=chosen.dimensions, sparse=chosen.sparse, placement=placement
        )
    from kgray.models.hashing import HashingEmbedder

    return HashingEmbedder() if chosen.dimensions is None else HashingEmbedder(dimensions=chosen.dimensions)


def build_reranker(settings: Settings, *, promised: str = "") -> Reranker | None:
    """Return the reranker; None if no reranker is configured. promised: see `build_embedder`."""
    require(settings, "reranker")
    if settings.reranker.backend == "http":
        from kgray.models.openai_api.retrieval import HttpReranker

        return HttpReranker(build_client(settings, "reranker"))
    if settings.reranker.backend == "bge":
        from kgray.models.bge import RERANKER, BgeReranker
        from kgray.models.encoder import Placement, require_package

        if settings.runtime.backend == "local":
            require_package("reranker")
        chosen = settings.reranker
        placement = Placement(device=chosen.device, precision=chosen.precision, promised=promised)
        return BgeReranker(chosen.name or RERANKER, placement=placement)
    return None


def build_client(settings: Settings, section: Literal["model", "embedder", "reranker"]) -> Client:
    """Return a server's client; all sections use the timeout, patience and concurrency of [model]."""
    from kgray.models.openai_api.client import Client, Endpoint

    model = settings.model
    chosen = getattr(settings, section)
    key = chosen.api_key
    if section == "model" and key is None and model.api_key_file is not None:
        key = Secret(_text_of("model.api_key_file", model.api_key_file).strip())
        if not is_sendable(key):
            raise SettingsError("model.api_key_file holds no key: one line of plain ASCII text is needed.")
    return Client(
        Endpoint(
            base_url=str(chosen.base_url),
            name=str(chosen.name),
            key=key,
            timeout_s=model.timeout_s,
            max_concurrency=model.max_concurrency,
            patience_s=model.patience_s,
            setting=section,
        )
    )


def _text_of(key: str, path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{key} = {str(path)!r} cannot be read: {error}.") from None
