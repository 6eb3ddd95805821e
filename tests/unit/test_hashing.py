"""The hashing embedder: deterministic, dense, unit length, spelling near spelling."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgray.models import hashing
from kgray.models.hashing import HashingEmbedder
from tests.tries import tries

EMBEDDER = HashingEmbedder()


async def cosines(*texts: str) -> np.ndarray:
    """Return the cosines of the first text with each of the others."""
    rows = await EMBEDDER.embed(texts)
    return rows[1:] @ rows[0]


async def test_the_bytes_are_the_same_on_every_machine():
    """A literal digest: a change of one bit anywhere would make stored folders lie about their vectors."""
    rows = await EMBEDDER.embed(
        ["Alice Nguyen works at Acme", "", "Œuvre ½ 東京 🎉", "the of and", "9" * 200]
    )

    assert hashlib.sha256(rows.astype("<f4").tobytes()).hexdigest() == (
        "c134ec19ec6c082f45fc11c71a7a8d8259411fd5ed0385afec63d1dc45889927"
    )
    assert EMBEDDER.identity == "hashing-1/1024"


async def test_the_bytes_do_not_depend_on_the_batch_or_the_cache():
    texts = ["Alice moved to Berlin", "Bob likes tea", "Alice moved to Berlin"]

    together = await HashingEmbedder().embed(texts)
    alone = [(await HashingEmbedder().embed([text]))[0] for text in texts]

    assert np.array_equal(together, np.stack(alone))


async def test_a_small_cache_does_not_change_vectors(monkeypatch):
    monkeypatch.setattr(hashing, "CACHE_BYTES", 3 * 2 * 1024)
    small = HashingEmbedder()
    text = " ".join(f"word{i}" for i in range(50))

    first, second_result = await small.embed([text]), await small.embed([text])

    assert small._word_sum.cache_info().currsize == 3
    assert np.array_equal(first, second_result)
    assert np.array_equal(first, await EMBEDDER.embed([text]))


async def test_an_empty_batch_gives_no_rows():
    rows = await EMBEDDER.embed([])

    assert (rows.shape, rows.dtype) == ((0, 1024), np.float32)


async def test_wordless_texts_share_one_unit_vector():
    rows = await EMBEDDER.embed(["", "   ", "...!?", "🎉🎉", "\n\t"])

    assert {row.tobytes() for row in rows} == {rows[0].tobytes()}
    assert set(np.abs(rows[0]).tolist()) == {1 / 32}


async def test_signs_agree_more_for_similar_texts():
    """SimHash needs dense vectors: few zeros, and signs that agree more for nearer texts."""
    rows = await EMBEDDER.embed(
        ["The printer prints ghost images", "The printer prints ghost pages", "Acme opened a branch in Oslo"]
    )
    signs = rows > 0

    assert (rows == 0).mean() < 0.05
    agree = [(signs[0] == signs[i]).mean() for i in (1, 2)]
    assert agree[0] > 0.65
    assert 0.44 < agree[1] < 0.56


async def test_names_with_a_common_part_are_nearer_than_unrelated_names():
    near, far = await cosines("Bob Smith", "Robert Smith", "Alice Nguyen")

    assert near > 0.4
    assert abs(far) < 0.15


@pytest.mark.parametrize(
    ("text", "near", "far"),
    [
        ("Alice works at Acme", "Where is Alice working? At Acme?", "Bob lives in Paris"),
        ("the printer prints ghost images", "ghost image on a printed page", "the scanner is slow"),
        ("Dana moved to Lisbon in March", "Dana is moving to Lisbon", "Dana prefers tea"),
        ("colour laser printers", "color laser printer", "coloured pencils"),
        ("東京に住んでいます", "東京都に住む", "大阪で働く"),
        ("STRASSE", "straße", "strand"),
    ],
)
async def test_paraphrases_are_nearer_than_unrelated_sentences(text, near, far):
    first, second = await cosines(text, near, far)

    assert first > second


async def test_stop_words_have_little_weight():
    (near,) = await cosines("printer", "it was all about the printer that we had")

    assert near > 0.8


async def test_a_repeated_word_has_slightly_more_weight():
    once, often = await cosines("tea", "tea coffee water", "tea tea tea tea coffee water")

    assert once < often < 0.95


async def test_only_the_first_part_of_a_long_text_is_embedded():
    text = " ".join(f"word{i}" for i in range(120_000))

    rows = await EMBEDDER.embed([text, text[: hashing.MAX_CHARACTERS]])

    assert np.array_equal(rows[0], rows[1])


def test_too_few_dimensions_are_refused():
    with pytest.raises(ValueError, match="7 dimensions are too few"):
        HashingEmbedder(dimensions=7)


async def test_vectors_of_any_width_have_unit_length():
    odd = HashingEmbedder(dimensions=37)

    rows = await odd.embed(["a word", ""])

    assert rows.shape == (2, 37)
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    assert odd.identity == "hashing-1/37"


@settings(max_examples=tries(150))
@given(st.lists(st.text(max_size=300), max_size=4))
async def test_any_text_is_a_finite_unit_vector(texts):
    rows = await EMBEDDER.embed(texts)

    assert rows.shape == (len(texts), 1024)
    assert np.isfinite(rows).all()
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
