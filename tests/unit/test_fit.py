"""The share of a profile that fits on its card: counts of weights against published counts, and refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kgray.errors import SettingsError
from kgray.runtime.fit import _weight_bits, config_of, kv_of, parameters, table
from kgray.runtime.spec import load_profile
from kgray.settings import load as load_settings

CLUSTER = Path(__file__).resolve().parents[2] / "cluster"
MODELS = {
    "card-24gb": "Qwen/Qwen3-8B-FP8",
    "card-48gb": "Qwen/Qwen3-14B-FP8",
    "card-80gb": "Qwen/Qwen3-30B-A3B-Instruct-2507-FP8",
    "cards-2x24gb": "Qwen/Qwen3-30B-A3B-Instruct-2507-FP8",
}


def chosen(name: str):
    overrides = {
        "model_backend": "vllm",
        "model_name": name,
        "embedder_backend": "bge",
        "reranker_backend": "bge",
    }
    return load_settings(None, environ={}, overrides=overrides)


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("Qwen/Qwen3-8B-FP8", 8.2e9),
        ("Qwen/Qwen3-14B-FP8", 14.8e9),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", 30.5e9),
        ("BAAI/bge-m3", 568e6),
    ],
)
def test_the_parameter_count_of_a_shape_equals_its_model_card(name, published):
    assert sum(parameters(config_of(name))) == pytest.approx(published, rel=0.01)


def test_the_cache_size_of_a_token_follows_from_its_heads():
    assert kv_of(config_of("Qwen/Qwen3-8B-FP8")) == 2 * 36 * 8 * 128 * 2


@pytest.mark.parametrize("name", MODELS)
def test_the_shipped_profiles_fit_and_name_their_models(name):
    profile = load_profile(CLUSTER / f"{name}.toml")
    rows, faults = table(profile, chosen(MODELS[name]))
    assert faults == []
    assert sum(size for _, size, _ in rows) == pytest.approx(profile.ray.card_gb)
    assert MODELS[name] in (CLUSTER / f"{name}.toml").read_text()


@pytest.mark.parametrize(
    ("engine", "model", "words"),
    [
        ({"max_num_seqs": 500}, MODELS["card-24gb"], "engine.max_num_seqs = 500: use 2"),
        ({}, MODELS["card-80gb"], "one request of engine.max_model_len = 8192 needs 0.8 GB"),
        ({"memory_share": 1.0}, MODELS["card-24gb"], "the card has 24 GB, and 27"),
    ],
)
def test_a_profile_that_cannot_fit_is_refused_with_numbers(engine, model, words):
    profile = load_profile(CLUSTER / "card-24gb.toml")
    _, faults = table(replace(profile, engine=replace(profile.engine, **engine)), chosen(model))
    assert words in "; ".join(faults)


def test_a_model_folder_gives_its_shape_and_an_unknown_model_is_an_error(tmp_path):
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 344}
    shape |= {"intermediate_size": 128}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    assert sum(parameters(config_of(str(tmp_path)))) == 2 * (4 * 64 * 64 + 3 * 64 * 128) + 64 * 344
    with pytest.raises(SettingsError, match="the shape of no/model is not known"):
        config_of("no/model")
    with pytest.raises(SettingsError, match="there is no card"):
        table(load_profile(), chosen(MODELS["card-24gb"]))


def test_doctor_prints_the_memory_table_and_reports_a_misfit(tmp_path, monkeypatch):
    from click.testing import CliRunner

    from kgray.cli import cli

    env = {
        "KGRAY_MODEL_BACKEND": "vllm",
        "KGRAY_MODEL_NAME": MODELS["card-80gb"],
        "KGRAY_DATA": str(tmp_path),
    }
    for name, code in (("card-80gb", 0), ("card-24gb", 2)):
        answer = CliRunner().invoke(
            cli, ["doctor", "--profile", str(CLUSTER / f"{name}.toml"), "--json"], env=env
        )
        assert answer.exit_code == code
        checks = json.loads(answer.stdout)["checks"]
        rows = {check["name"]: check for check in checks}
        assert rows["fit"]["ok"] == (code == 0)
        assert rows["--max-num-seqs"]["detail"].endswith("; from engine.max_num_seqs")
        assert rows["--scheduling-policy"]["detail"].startswith("priority; from kgray")
        assert rows["engine.args"]["ok"]


def test_fewer_bits_of_weights_and_cache_leave_more_room():
    """Quantised by the model's name (AWQ), by vLLM during loading (fp8), and in the cache."""
    profile = load_profile(CLUSTER / "card-48gb.toml")

    def sizes(model: str, **args: str) -> dict[str, float]:
        engine = replace(profile.engine, args=args)
        rows, _ = table(replace(profile, engine=engine), chosen(model))
        return {name.split(" of ")[0]: size for name, size, _ in rows}

    fp8, awq = sizes("Qwen/Qwen3-14B-FP8")["weights"], sizes("Qwen/Qwen3-14B-AWQ")["weights"]
    layers, tables = parameters(config_of("Qwen/Qwen3-14B-AWQ"))
    assert fp8 - awq == pytest.approx(layers / 2 / 1e9)
    assert awq == pytest.approx((layers / 2 + 2 * tables) / 1e9)
    assert kv_of(config_of("Qwen/Qwen3-8B-FP8"), "fp8_e4m3") == 36 * 8 * 128 * 2
    wide = dict(config_of("BAAI/bge-m3"))
    assert _weight_bits(wide, "fp8") == 8
    assert _weight_bits(wide, "") == 16
