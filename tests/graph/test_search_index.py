"""The index of a reader: its contents after any history, and its eviction of rows."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from kgray.language.words import packed, term
from kgray.schema.rows import sign_bits
from kgray.search import index as indexing
from kgray.search.index import GroupIndex, Indexes, Vectors, Words
from tests.graph.by_hand import WIDTH, pointing, remove, tell
from tests.graph.engine import SMALL, Engine
from tests.graph.histories import Played, Quoting, Refuses, history
from tests.graph.stores import EMBEDDED, Stores


def contents(index: GroupIndex) -> dict[str, Any]:
    """Return all that an index holds, in its order."""
    messages, pieces, names = index.messages, index.pieces, index.names

    def texts(column: Any) -> list[str]:
        return [column.texts[number] for number in column.number_of.tolist()]

    def vectors(owner: Any, numbers: Any) -> dict[object, bytes]:
        assert owner.keeps_exact()
        assert owner.owners.tolist() == [numbers[name] for name in owner.rows]
        return {name: owner._exact[row].tobytes() for name, row in owner.rows.items()}

    return {
        "messages": (messages.sequences.tolist(), messages.times.tolist(), messages.words._texts),
        "speakers": texts(messages.speakers),
        "sources": texts(messages.sources),
        "sessions": (messages.sessions.order.tolist(), messages.sessions.of_row.tolist()),
        "pieces": (pieces.sequences.tolist(), pieces.ordinals.tolist(), pieces.words._texts),
        "statements": texts(pieces.statements),
        # An entity may get a name of before by a correction: it is then the last, and the order is free.
        "names": sorted(zip(names.numbers, names.words._texts, texts(names.entities), strict=True), key=repr),
        "vectors": [
            vectors(messages.vectors, messages.numbers),
            vectors(pieces.vectors, pieces.statements.numbers),
            vectors(names.vectors, names.numbers),
        ],
        "lengths": [len(part.words.lengths) for part in (messages, pieces, names)],
    }


def followed(played: Played, steps: list[Any]) -> set[int]:
    """Play a history that `Indexes` follows at two of three steps; return the ids of its indexes."""
    store, width = played.engine.store, SMALL.dimensions
    indexes, observations = Indexes(store, width), set()
    for number, step in enumerate(steps):
        played.carry_out(number, step)
        if number % 3 == 1:
            continue
        with indexes.open(played.engine.named()) as index, Indexes(store, width).open(index.group) as fresh:
            assert contents(index) == contents(fresh)
            observations.add(id(index))
    return observations


@EMBEDDED
def test_an_index_that_follows_a_history_equals_a_fresh_index(stores: Stores, monkeypatch):
    """After additions, failures, retries, replacements, merges, splits, undos, retractions and removals."""
    monkeypatch.setattr(indexing, "RELOAD", 0)  # extend by however much is new
    monkeypatch.setattr(indexing, "CHUNK", 2)
    store = stores.open()
    for seed in range(6):
        reader = Refuses()
        engine = Engine(store=store, prefix=stores.fresh(), judge=Quoting(), extractor=reader)
        steps = history(seed + 100, steps=12)
        assert len(followed(Played(engine, reader), steps)) < len(steps) / 2, (
            "an index that is always loaded anew follows nothing"
        )


@EMBEDDED
def test_the_index_of_a_removed_group_is_empty(store, group):
    indexes = Indexes(store, WIDTH)
    with store.writing():
        tell(store, "Al", "one", group=group)
        with indexes.open(group) as index:
            assert index.messages.sequences.tolist() == [1]
        remove(store, [], group=group, everything=True)
        with indexes.open(group) as index:
            assert contents(index) == contents(GroupIndex(group, WIDTH, 0))
        last = tell(store, "Bo", "two", group=group)
        with indexes.open(group) as index:
            assert index.messages.sequences.tolist() == [last]
            assert next(iter(index.names.numbers))[1] == "Bo"


@EMBEDDED
def test_a_reader_evicts_the_least_recently_used_index(store, stores):
    groups = [stores.fresh() + "g" for _ in range(3)]
    with store.writing():
        for group in groups:
            tell(store, "Al", "one", group=group)
    single_index = GroupIndex(groups[0], WIDTH, 0)
    single_index.load(store, 1)
    indexes = Indexes(store, WIDTH, memory_bytes=2 * single_index.nbytes())
    indexes_by_group: dict[
        str, GroupIndex
    ] = {}  # keeps each index alive: a new index could reuse the address of a dropped one
    for name in (0, 1, 0, 2, 0, 1):
        with indexes.open(groups[name]) as index:
            if name == 1:
                assert index is not indexes_by_group.get(groups[1]), "1 was asked before 0 and 2"
            elif name in indexes_by_group:
                assert index is indexes_by_group[groups[name]]
            indexes_by_group[groups[name]] = index
        assert len(indexes._cache) <= 2
    assert list(indexes._cache) == [groups[0], groups[1]]


@pytest.mark.seldom_on_neo4j
def test_concurrent_readers_see_consistent_indexes_during_writes(store, group):
    indexes, faults = Indexes(store, WIDTH), []

    def ask() -> None:
        last = 0
        for _ in range(15):
            with indexes.open(group) as index:
                rows = index.messages.sequences.tolist()
                is_complete = rows == list(range(1, len(rows) + 1)) == index.pieces.sequences.tolist()
                if not is_complete or len(rows) < last or len(index.pieces.vectors.rows) != len(rows):
                    faults.append(rows)
                last = len(rows)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    with store.writing():
        for thread in threads:
            thread.start()
        for number in range(10):
            tell(store, f"N{number}", "one", group=group)
    for thread in threads:
        thread.join()
    with indexes.open(group) as index:
        assert (len(index.messages.sequences), faults) == (10, [])


def test_words_added_in_pieces_score_like_words_added_at_once():
    rng = np.random.default_rng(1)
    texts = [" ".join(f"w{n}" for n in rng.integers(0, 30, rng.integers(0, 9))) for _ in range(200)]
    pieces = Words()
    for start in range(0, 200, 7):
        pieces.add([packed(text) for text in texts[start : start + 7]])
    for word in range(31):
        expected = {row: text.split().count(f"w{word}") for row, text in enumerate(texts)}
        rows, often = pieces.having(term(f"w{word}"))
        assert dict(zip(rows.tolist(), often.tolist(), strict=True)) == {
            r: n for r, n in expected.items() if n
        }
        assert rows.tolist() == sorted(rows.tolist())
    pairs = [list(zip(text.split(), text.split()[1:], strict=False)) for text in texts]
    phrase = next(items[0] for items in pairs if items and items[0][0] != items[0][1])
    matches = [row for row, items in enumerate(pairs) if phrase in items]
    assert pieces.having_phrase([term(word) for word in phrase]) == matches != []
    assert pieces.having_phrase([term("w1"), term("nothing")]) == []


@pytest.mark.parametrize("signs", [False, True])
def test_signs_find_nearly_the_20_nearest_of_clustered_vectors(signs, monkeypatch):
    """Past EXACT_BYTES: 0.9 at least, and a vector that is found has its exact cosine."""
    rng = np.random.default_rng(7)
    centres = rng.normal(size=(300, 256))
    samples = centres[rng.integers(0, 300, 6000)] + 0.8 * rng.normal(size=(6000, 256))
    matrix = (samples / np.linalg.norm(samples, axis=1, keepdims=True)).astype(np.float32)
    monkeypatch.setattr(indexing, "EXACT_BYTES", 1000 * 256 * 4 if signs else 1 << 30)
    vectors, numbers = Vectors(256), {n: n for n in range(6000)}
    for start in range(0, 6000, 500):
        page = matrix[start : start + 500]
        as_signs = not vectors.keeps_exact(len(page))
        rows = sign_bits(page) if as_signs else page
        names = list(range(start, start + 500))
        vectors.add(names, [row.tobytes() for row in rows], numbers, [(0, 0)] * len(names), signs=as_signs)
    assert vectors.keeps_exact() is not signs
    hit_count = 0
    for query_row in range(0, 6000, 300):
        exact = matrix @ matrix[query_row]
        cosines = vectors.cosines(
            matrix[query_row], lambda requested: [(n, matrix[n].tobytes()) for n, _ in requested]
        )
        best = np.argsort(-cosines)[:20]
        assert cosines[best] == pytest.approx(exact[best], abs=1e-6)
        hit_count += len(set(best.tolist()) & set(np.argsort(-exact)[:20].tolist()))
    assert hit_count >= (360 if signs else 400)


def test_an_existing_vector_is_not_added_again():
    vectors = Vectors(WIDTH)
    for _ in range(2):
        vectors.add(
            ["a", "b"], [pointing(n).tobytes() for n in (1, 2)], {"a": 0, "b": 4}, [(0, 0)] * 2, signs=False
        )
    assert (vectors.rows, vectors.owners.tolist()) == ({"a": 0, "b": 1}, [0, 4])
