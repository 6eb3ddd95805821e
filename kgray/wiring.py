"""Settings to local parts: which model, embedder and store; each backend is imported when it is chosen."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from kgray.errors import SettingsError, StoreError
from kgray.settings import ModelSettings, Secret, Settings, StoreSettings, require_built

if TYPE_CHECKING:
    from kgray.backends.rules.extractor import RulesExtractor
    from kgray.ingest.parts import Parts
    from kgray.ontology import Ontology
    from kgray.ports import Embedder, ExtractionRequest, Extractor, Judge, ResponseCache, Store
    from kgray.prompting import Prompts
    from kgray.records import Extraction


def build_parts(settings: Settings, data: Path, *, create: bool, cache_mb: int | None = None) -> Parts:
    """Return the parts of one process over a data folder; the store is open.

    create: make the folder and its store where there are none. cache_mb: of pages of the embedded store;
    None = what suits a process that searches. Raises NotBuilt, SettingsError, StoreError.
    """
    from kgray.ingest.parts import Parts, Pipeline

    require_built(settings)
    ontology = build_ontology(settings)
    extractor, judge = build_models(settings, ontology)
    embedder = build_embedder(settings)
    store, cache = open_store(settings, data, embedder, create=create, cache_mb=cache_mb)
    if settings.model.backend == "openai" and cache is not None:
        # Made once more, with the cache: what is wrong with the settings was said before a folder is made.
        extractor, judge = build_models(settings, ontology, cache)
    chosen = settings.pipeline
    return Parts(
        store=store,
        extractor=extractor,
        judge=judge,
        embedder=embedder,
        ontology=ontology,
        pipeline=Pipeline(
            extraction=chosen.extraction,
            resolution=chosen.resolution,
            judging=chosen.judging,
            reflect_rounds=chosen.reflect_rounds,
            previous_episodes=chosen.previous_episodes,
        ),
        state_bytes=settings.runtime.state_mb << 20,
        patience_s=settings.model.patience_s,
        window=settings.runtime.window,
        streams=settings.model.max_concurrency,
    )


def open_store(
    settings: Settings, data: Path, embedder: Embedder, *, create: bool, cache_mb: int | None = None
) -> tuple[Store, ResponseCache | None]:
    """Return the store, open, and the cache of replies beside it: the embedded store has one."""
    chosen = settings.store
    if chosen.backend == "neo4j":
        opened = _neo4j_door()(
            uri=_store_address(chosen.uri),
            user=chosen.user or "neo4j",
            password=_password(chosen).reveal(),
            database=chosen.database,
            embedder=embedder.identity,
            dimensions=embedder.dimensions,
            folder=data,
            create=create,
        )
        try:
            if create:
                _make_folder(data)
        except StoreError:
            opened.close()
            raise
        return opened, None
    from kgray.stores.sqlite import CACHE_MB, open_sqlite

    store = open_sqlite(
        data,
        embedder=embedder.identity,
        dimensions=embedder.dimensions,
        create=create,
        cache_mb=CACHE_MB if cache_mb is None else cache_mb,
    )
    bound = settings.model.cache_mb << 20
    return store, store.responses(max_bytes=bound) if bound else None


def _neo4j_door() -> Callable[..., Store]:
    try:
        from kgray.stores.neo4j import open_neo4j
    except ModuleNotFoundError as error:
        raise SettingsError(
            f'store.backend = "neo4j" needs the package {error.name}, which is not installed: '
            "pip install 'kgray[neo4j]'."
        ) from None
    return open_neo4j


def _make_folder(data: Path) -> None:
    """Make the data folder of a store on a server: the lock, reports and settings lie in it."""
    try:
        data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{error.filename or data}: {error.strerror}") from None


def build_ontology(settings: Settings) -> Ontology:
    """Return the shipped ontology with what the settings declare."""
    from kgray.ontology import shipped

    declared = settings.relations or settings.entities
    return shipped().extended(settings.relations, settings.entities) if declared else shipped()


def build_models(
    settings: Settings, ontology: Ontology, cache: ResponseCache | None = None
) -> tuple[Extractor, Judge]:
    """Return who reads episodes and who answers questions; cache: keeps a language model's replies."""
    if settings.model.backend == "scripted":
        from kgray.backends.scripted import ScriptedExtractor, ScriptedJudge

        if settings.model.script is None:
            raise SettingsError(
                'model.backend = "scripted" needs model.script (KGRAY_MODEL_SCRIPT): the file of answers.'
            )
        return ScriptedExtractor(settings.model.script), ScriptedJudge(settings.model.script)
    if settings.model.backend == "openai":
        return _openai_models(settings, ontology, cache)
    from kgray.backends.rules.judge import RulesJudge

    return _RulesWhenRead(ontology), RulesJudge()


class _RulesWhenRead:
    """The rules extractor, made when an episode is read: commands that only ask do not wait for it."""

    def __init__(self, ontology: Ontology) -> None:
        self._ontology = ontology

    @cached_property
    def _rules(self) -> RulesExtractor:
        from kgray.backends.rules.extractor import RulesExtractor

        return RulesExtractor(self._ontology)

    @property
    def identity(self) -> str:
        return self._rules.identity

    async def extract(self, request: ExtractionRequest) -> Extraction:
        return await self._rules.extract(request)


def build_prompts(settings: Settings, ontology: Ontology) -> Prompts:
    """Return the prompts as these settings fill them: the same for every episode of a run."""
    from kgray.prompting import Prompts

    own = (_instructions(settings.model), settings.model.instructions)
    return Prompts(ontology, "\n\n".join(filter(None, own)))


def _openai_models(
    settings: Settings, ontology: Ontology, cache: ResponseCache | None
) -> tuple[Extractor, Judge]:
    from kgray.backends.openai_api.client import Client, Endpoint
    from kgray.backends.openai_api.extractor import OpenAIExtractor
    from kgray.backends.openai_api.judge import OpenAIJudge

    model, pipeline = settings.model, settings.pipeline
    client = Client(
        Endpoint(
            base_url=_address("model", model.base_url),
            name=_needed("model", "name", model.name, "the model's name as the server knows it"),
            key=_key(model),
            timeout_s=model.timeout_s,
            max_concurrency=model.max_concurrency,
            patience_s=model.patience_s,
        )
    )
    prompts = build_prompts(settings, ontology)
    separate = pipeline.extraction == "separate"
    return (
        OpenAIExtractor(
            client, prompts, separate=separate, reflect_rounds=pipeline.reflect_rounds, cache=cache
        ),
        OpenAIJudge(client, prompts, apart=pipeline.resolution == "per_node", cache=cache),
    )


def build_embedder(settings: Settings) -> Embedder:
    """Return who turns texts into vectors."""
    chosen = settings.embedder
    if chosen.backend == "openai":
        from kgray.backends.openai_api.client import Client, Endpoint
        from kgray.backends.openai_api.embedder import OpenAIEmbedder

        if chosen.dimensions is None:
            raise SettingsError(
                'embedder.backend = "openai" needs embedder.dimensions (KGRAY_EMBEDDER_DIMENSIONS): '
                "how many numbers the model gives a text."
            )
        endpoint = Endpoint(
            base_url=_address("embedder", chosen.base_url),
            name=_needed("embedder", "name", chosen.name, "the model's name as the server knows it"),
            key=_plain("embedder.api_key", chosen.api_key),
            timeout_s=settings.model.timeout_s,
            max_concurrency=settings.model.max_concurrency,
            patience_s=settings.model.patience_s,
            setting="embedder",
        )
        return OpenAIEmbedder(Client(endpoint), dimensions=chosen.dimensions)
    if chosen.backend == "minilm":
        from kgray.backends.minilm import DIMENSIONS, MiniLMEmbedder

        if chosen.dimensions not in (None, DIMENSIONS):
            raise SettingsError(
                f'embedder.dimensions = {chosen.dimensions}, but "minilm" gives {DIMENSIONS}: '
                "leave embedder.dimensions out."
            )
        return MiniLMEmbedder(Path(chosen.name) if chosen.name else None)
    from kgray.backends.hashing import HashingEmbedder

    return HashingEmbedder() if chosen.dimensions is None else HashingEmbedder(dimensions=chosen.dimensions)


def _needed(section: str, key: str, value: str | None, what: str) -> str:
    if value is None:
        variable = f"KGRAY_{section}_{key}".upper()
        raise SettingsError(f'{section}.backend = "openai" needs {section}.{key} ({variable}): {what}.')
    return value


def _address(section: str, given: str | None) -> str:
    """Return a server's address, checked here: a wrong one would look like a server that is down."""
    url = _needed(section, "base_url", given, "the server's address, mostly ending in /v1")
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        sound = False
    if not sound or "@" in url:
        raise SettingsError(
            f"{section}.base_url is not an address such as http://localhost:8000/v1 "
            f"(http or https, a host; no user or password: {section}.api_key is for that)."
        )
    return url


_SCHEMES = ("neo4j", "neo4j+s", "neo4j+ssc", "bolt", "bolt+s", "bolt+ssc")


def _store_address(uri: str | None) -> str:
    if uri is None:
        raise SettingsError(
            'store.backend = "neo4j" needs store.uri (KGRAY_STORE_URI): the server\'s address, '
            "such as bolt://localhost:7687."
        )
    try:
        parts = urlsplit(uri)
        sound = parts.scheme in _SCHEMES and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        sound = False
    if not sound or "@" in uri:
        raise SettingsError(
            f"store.uri is not an address such as bolt://localhost:7687 ({', '.join(_SCHEMES)}; a host; "
            "no user or password: store.user and store.password are for that)."
        )
    return uri


def _password(store: StoreSettings) -> Secret:
    """Return the password: as set, else the text of its file."""
    if store.password is not None:
        return store.password
    if store.password_file is None:
        raise SettingsError(
            'store.backend = "neo4j" needs the password: KGRAY_STORE_PASSWORD in the environment, or '
            "store.password_file."
        )
    return Secret(_file_text("store.password_file", store.password_file).rstrip("\r\n"))


def _key(model: ModelSettings) -> Secret | None:
    """Return the key: as set, else the text of its file."""
    if model.api_key is not None or model.api_key_file is None:
        return _plain("model.api_key", model.api_key)
    return _plain("model.api_key_file", Secret(_file_text("model.api_key_file", model.api_key_file).strip()))


def _plain(setting: str, key: Secret | None) -> Secret | None:
    text = key.reveal() if key else "-"
    if not text or not text.isascii() or not text.isprintable():
        raise SettingsError(f"{setting} holds no key: one line of plain ASCII text is needed.")
    return key


def _instructions(model: ModelSettings) -> str:
    if model.instructions_file is None:
        return ""
    return _file_text("model.instructions_file", model.instructions_file)


def _file_text(key: str, path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{key} = {str(path)!r} cannot be read: {error}.") from None
