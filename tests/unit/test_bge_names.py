"""The identity of a BGE model, and a folder that this machine lacks; the models themselves: tests/models."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec

import pytest

from kgray.errors import SettingsError
from kgray.models.bge import BgeEmbedder, BgeReranker
from kgray.runtime.wiring import build_embedder
from kgray.settings import load


@pytest.mark.parametrize("kind", [BgeEmbedder, BgeReranker])
def test_the_identity_is_the_same_on_machines_with_and_without_the_folder(kind, tmp_path):
    folder = tmp_path / "bge-m3"
    identity = kind(str(folder)).identity
    folder.mkdir()
    assert identity == kind(str(folder)).identity == "bge:bge-m3"


def test_a_hub_name_is_complete_even_if_a_folder_has_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "BAAI/bge-m3").mkdir(parents=True)
    assert BgeEmbedder("BAAI/bge-m3").identity == "bge:BAAI/bge-m3"
    assert BgeEmbedder("./BAAI/bge-m3/").identity == "bge:bge-m3"


def test_a_missing_model_folder_gets_an_error_with_a_remedy(tmp_path):
    embedder = BgeEmbedder(str(tmp_path / "bge-m3"))
    with pytest.raises(
        SettingsError, match=r"embedder\.name = .*bge-m3.* no such folder .*: mount it"
    ) as raised:
        asyncio.run(embedder.embed(["a text"]))
    assert "\n" not in str(raised.value)


@pytest.mark.skipif(find_spec("FlagEmbedding") is not None, reason="FlagEmbedding is installed")
def test_without_the_package_only_a_ray_client_knows_the_model(tmp_path):
    overrides = {"embedder_backend": "bge", "embedder_name": str(tmp_path), "embedder_sparse": False}
    pooled = build_embedder(load(environ={}, overrides=overrides | {"runtime_backend": "ray"}))
    assert pooled.identity == f"bge:{tmp_path.name}"
    for ask in (
        lambda: asyncio.run(pooled.embed(["a text"])),
        lambda: build_embedder(load(environ={}, overrides=overrides)),
    ):
        with pytest.raises(SettingsError, match=r"needs FlagEmbedding, which is not installed: run `pip"):
            ask()
