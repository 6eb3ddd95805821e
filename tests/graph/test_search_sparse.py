"""An embedder that weighs tokens: a third signal of searches, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from kgray.domain.graph import Hit
from kgray.domain.ontology import shipped
from kgray.domain.records import Draft
from kgray.errors import InputError
from kgray.language.words import term, words
from kgray.models.hashing import HashingEmbedder
from kgray.models.rules.extractor import RulesExtractor
from kgray.ports import Matrix
from kgray.schema import reads
from kgray.schema.rows import weight_bytes
from kgray.search import Query, Searcher
from kgray.search import index as indexing
from tests import make
from tests.graph.by_hand import WIDTH
from tests.graph.engine import GROUP, SMALL, Engine, day, engine_on
from tests.graph.record_vectors import episode_vectors, statement_vectors
from tests.graph.stores import EMBEDDED, Stores

MESSAGES = (
    ("walk", "Marta works at Nordwind."),
    ("cycle", "The bicycles stand in the cellar."),
    ("work", "Marta is at Nordwind, in the tower, and works there."),
    ("cake", "Ben baked a cake."),
    ("rain", "It rains."),
)


class Weighing(HashingEmbedder):
    """The tests' vectors, and weights of the first four letters of words: a model has similar word parts."""

    def __init__(self) -> None:
        super().__init__(WIDTH)
        self.passes = 0

    def weights(self, text: str) -> bytes:
        """Return the weights of a text, 0.125 a letter."""
        parts = [word[:4] for word in words(text)]
        tokens = np.array([term(part) for part in parts], np.uint32)
        return weight_bytes(tokens, np.array([len(part) / 8 for part in parts], np.float32))

    async def embed_both(self, texts: Sequence[str]) -> tuple[Matrix, list[bytes]]:
        """Return both, of one pass."""
        self.passes += 1
        return await self.embed(texts), [*map(self.weights, texts)]


def message(name: str, text: str, at: float = 0, **options: Any) -> Draft:
    return make.draft(text, **{"speaker": "Ann", "at": day(at), "group": GROUP, "client_id": name, **options})


def reader(stores: Stores, **options: Any) -> Engine:
    """Return an engine that reads plain sentences and weighs their tokens."""
    return engine_on(stores, extractor=RulesExtractor(shipped()), embedder=Weighing(), **options)


def hits(engine: Engine, text: str, searcher: Searcher | None = None, **options: Any) -> list[Hit]:
    query = Query(text=text, group=engine.named(), **options)
    return asyncio.run((searcher or Searcher(engine.store, engine.parts.embedder)).search(query))


def comparable(results: Sequence[Hit]) -> list[Any]:
    """Return the fields that do not depend on the group's name."""
    return [(hit.scope, hit.text, hit.score, hit.signals, hit.methods) for hit in results]


def stored_weights(engine: Engine) -> dict[str, list[tuple[bytes | None, bytes]]]:
    """Return (weights, vector) of episodes and statements: their owners' ids depend on the group's name."""
    store, group = engine.store, engine.named()
    return {
        "episodes": sorted((weights, vector) for _, weights, vector in episode_vectors(store, group)),
        "statements": sorted((weights, vector) for _, weights, vector in statement_vectors(store, group)),
    }


@EMBEDDED
def test_sparse_search_finds_and_explains_a_match_of_word_parts(stores: Stores) -> None:
    engine = reader(stores)
    engine.add(*(message(name, text, n) for n, (name, text) in enumerate(MESSAGES)))
    question, weighed = "Where is a bicyclist?", engine.parts.embedder.weights

    hits_found = hits(engine, question, methods=("sparse",), scopes=("episode",))

    assert [(hit.client_id, hit.methods["sparse"]) for hit in hits_found[:1]] == [("cycle", 1)]
    # "bicy" is the only shared part, and besides stop words the only weighed part of the question
    own_weights = np.frombuffer(weighed(question)[4 * len(weighed(question)) // 6 :], "<f2").astype(
        np.float32
    )
    assert hits_found[0].signals["sparse"] == pytest.approx(
        (0.5**2 / float(own_weights @ own_weights) - 0.1) / 0.9, abs=1e-4
    )
    assert "cycle" not in [hit.client_id for hit in hits(engine, question, recipe="lexical")]
    facts = hits(engine, "Who is a worker?", methods=("sparse",), scopes=("fact",))
    assert [(hit.text, hit.methods["sparse"]) for hit in facts] == [("Marta works at Nordwind", 1)]
    (first, *_) = hits(engine, question)
    assert (first.client_id, first.methods["sparse"]) == ("cycle", 1)


@EMBEDDED
def test_an_extended_index_gives_the_hits_of_a_loaded_index(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even an index with only the signs of vectors has complete weights in memory."""
    engine = reader(stores)
    grown = Searcher(engine.store, engine.parts.embedder)
    for n, (name, text) in enumerate((*MESSAGES, *((f"{name} again", text) for name, text in MESSAGES))):
        engine.add(message(name, text, n))
        hits_found = hits(engine, "Who works with bicyclists?", grown)
        assert comparable(hits_found) == comparable(hits(engine, "Who works with bicyclists?"))
        assert n < 1 or any("sparse" in hit.signals for hit in hits_found)
    complete_hits = hits(engine, "Who works with bicyclists?", methods=("sparse",))
    monkeypatch.setattr(indexing, "EXACT_BYTES", 0)
    signs = hits(engine, "Who works with bicyclists?", methods=("sparse",))
    assert [(h.id, h.score, h.signals["sparse"]) for h in signs] == [
        (h.id, h.score, h.signals["sparse"]) for h in complete_hits
    ]


@EMBEDDED
def test_hits_do_not_depend_on_other_groups(stores: Stores) -> None:
    engine = reader(stores)
    engine.add(*(message(name, text, n) for n, (name, text) in enumerate(MESSAGES)))
    hits_before = comparable(hits(engine, "Who works with bicyclists?"))
    engine.add(*(message(f"o{n}", f"Bicyclists work {n}.", n, group="other") for n in range(20)))
    assert comparable(hits(engine, "Who works with bicyclists?")) == hits_before != []


@pytest.mark.seldom_on_neo4j
def test_a_removal_takes_the_weights_and_a_statement_gets_the_weights_of_its_remaining_wording(
    stores: Stores,
) -> None:
    """R25: rows, index and hits equal those of a group that never had the episode."""
    engine = reader(stores)
    engine.add(*(message(name, text, n) for n, (name, text) in enumerate(MESSAGES)))
    searcher = Searcher(engine.store, engine.parts.embedder)
    assert hits(engine, "Who is a worker?", searcher)
    engine.ask("remove", episodes=("walk", "cycle"))

    never = reader(stores)
    never.add(
        *(message(name, text, n) for n, (name, text) in enumerate(MESSAGES) if name not in ("walk", "cycle"))
    )
    assert stored_weights(engine) == stored_weights(never)
    weights = {weight for weight, _ in stored_weights(engine)["statements"]}
    assert weights <= {engine.parts.embedder.weights(text) for _, text in MESSAGES[2:]}
    for question in ("Who is a worker?", "Where is a bicyclist?"):
        assert comparable(hits(engine, question, searcher)) == comparable(hits(never, question))


@EMBEDDED
def test_a_parallel_run_stores_the_weights_of_the_plain_loop_from_the_passes_of_the_vectors(
    stores: Stores,
) -> None:
    texts = [message(f"{name}{n}", text, n) for n in range(6) for name, text in MESSAGES]
    plain, parallel = reader(stores), reader(stores, window=8)
    for engine in (plain, parallel):
        engine.add(*texts)
    assert stored_weights(plain) == stored_weights(parallel)
    assert None not in [weights for row_list in stored_weights(plain).values() for weights, _ in row_list]
    assert plain.parts.embedder.passes == len(texts)


@EMBEDDED
def test_an_embedder_without_weights_gives_no_sparse_signal(stores: Stores) -> None:
    engine = engine_on(stores, extractor=RulesExtractor(shipped()))
    engine.add(*(message(name, text, n) for n, (name, text) in enumerate(MESSAGES)))
    assert {weights for row_list in stored_weights(engine).values() for weights, _ in row_list} == {None}
    hits_found = hits(engine, "Where does Marta work?")
    assert hits_found
    assert not any("sparse" in hit.signals for hit in hits_found)
    with pytest.raises(InputError, match="weighs tokens"):
        hits(engine, "Where?", Searcher(engine.store, SMALL), methods=("sparse",))


@EMBEDDED
def test_unrequested_methods_add_no_hits_and_read_no_rows(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = reader(stores)
    engine.add(*(message(name, text, n) for n, (name, text) in enumerate(MESSAGES)))
    monkeypatch.setattr(indexing, "EXACT_BYTES", 0)
    rows, read_names = engine.store.rows, list[str]()

    def noted(read: Any, *extra: Any) -> Any:
        read_names.append(read.name)
        return rows(read, *extra)

    monkeypatch.setattr(engine.store, "rows", noted)
    for recipe in ("paper", "hybrid"):
        for method in ("bm25", "cosine", "sparse"):
            read_names.clear()
            hits_found = hits(engine, "Where works a bicyclist, Marta?", recipe=recipe, methods=(method,))
            assert {used for hit in hits_found for used in hit.methods} == {method}
            vectors = {reads.VECTORS_AT.name, reads.NAME_VECTORS_AT.name} & {*read_names}
            assert bool(vectors) == (method == "cosine")


@EMBEDDED
def test_a_text_that_shares_only_small_words_is_not_a_hit(stores: Stores) -> None:
    class Small(Weighing):
        """Little words weigh a third of others, as the model has them."""

        def weights(self, text: str) -> bytes:
            parts = words(text)
            tokens = np.array([term(part) for part in parts], np.uint32)
            weights_of_parts = [0.08 if part in {"what", "is"} else 0.25 for part in parts]
            return weight_bytes(tokens, np.array(weights_of_parts, np.float32))

    engine = engine_on(stores, extractor=RulesExtractor(shipped()), embedder=Small())
    engine.add(
        *(
            message(str(n), text, n)
            for n, text in enumerate(("What is up?", "It rains.", "My shoes are wet."))
        )
    )
    assert hits(engine, "What is zorplation?", methods=("bm25", "sparse")) == []
    assert hits(engine, "shoes?", methods=("sparse",))[0].client_id == "2"
