"""Settings to local parts: which model, embedder and store; each backend is imported when it is chosen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kgray.errors import SettingsError
from kgray.settings import Settings, require_built

if TYPE_CHECKING:
    from kgray.ingest.parts import Parts
    from kgray.ontology import Ontology
    from kgray.ports import Embedder, Extractor, Judge


def build_parts(settings: Settings, data: Path, *, create: bool) -> Parts:
    """Return the parts of one process over a data folder; the store is open.

    create: make the folder and its store where there are none. Raises NotBuilt, SettingsError, StoreError.
    """
    from kgray.ingest.parts import Parts, Pipeline
    from kgray.stores.sqlite import open_sqlite

    require_built(settings)
    ontology = build_ontology(settings)
    extractor, judge = build_models(settings, ontology)
    embedder = build_embedder(settings)
    store = open_sqlite(data, embedder=embedder.identity, dimensions=embedder.dimensions, create=create)
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


def build_ontology(settings: Settings) -> Ontology:
    """Return the shipped ontology with the settings' relations."""
    from kgray.ontology import shipped

    return shipped().extended(settings.relations) if settings.relations else shipped()


def build_models(settings: Settings, ontology: Ontology) -> tuple[Extractor, Judge]:
    """Return who reads episodes and who answers questions."""
    if settings.model.backend == "scripted":
        from kgray.backends.scripted import ScriptedExtractor, ScriptedJudge

        if settings.model.script is None:
            raise SettingsError(
                'model.backend = "scripted" needs model.script (KGRAY_MODEL_SCRIPT): the file of answers.'
            )
        return ScriptedExtractor(settings.model.script), ScriptedJudge(settings.model.script)
    from kgray.backends.judging import RulesJudge
    from kgray.backends.rules import RulesExtractor

    return RulesExtractor(ontology), RulesJudge()


def build_embedder(settings: Settings) -> Embedder:
    """Return who turns texts into vectors."""
    from kgray.backends.hashing import HashingEmbedder

    dimensions = settings.embedder.dimensions
    return HashingEmbedder() if dimensions is None else HashingEmbedder(dimensions=dimensions)
