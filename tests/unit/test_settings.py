"""Settings: TOML, then variables, then arguments; every key of the interface, every refusal in one line."""

from __future__ import annotations

import pickle
import re
import traceback
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest

from kgray.domain.ontology import shipped
from kgray.errors import SettingsError
from kgray.settings import (
    KEYS,
    RuntimeSettings,
    Secret,
    Settings,
    config_file,
    data_folder,
    load,
    require,
    require_built,
    unbuilt,
)


def write(folder: Path, text: str) -> Path:
    path = folder / "kgray.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_keys_equal_the_keys_of_the_interface():
    assert set(KEYS) == {
        "store.backend",
        "store.uri",
        "store.user",
        "store.password",
        "store.password_file",
        "store.database",
        "model.backend",
        "model.script",
        "model.base_url",
        "model.name",
        "model.api_key",
        "model.api_key_file",
        "model.timeout_s",
        "model.max_concurrency",
        "model.patience_s",
        "model.instructions",
        "model.instructions_file",
        "embedder.backend",
        "embedder.base_url",
        "embedder.name",
        "embedder.api_key",
        "embedder.dimensions",
        "embedder.sparse",
        "embedder.device",
        "embedder.precision",
        "reranker.backend",
        "reranker.base_url",
        "reranker.name",
        "reranker.api_key",
        "reranker.device",
        "reranker.precision",
        "pipeline.extraction",
        "pipeline.resolution",
        "pipeline.reflect_rounds",
        "pipeline.previous_episodes",
        "pipeline.unit_tokens",
        "pipeline.unit_overlap",
        "prompts.folder",
        "records.key",
        "runtime.backend",
        "runtime.address",
        "runtime.profile",
        "runtime.window",
        "runtime.state_mb",
        "runtime.chunk_episodes",
        "runtime.chunk_requests",
    }


def test_the_defaults_equal_the_defaults_of_the_interface():
    settings = load(None, environ={})
    assert settings == Settings()
    assert (settings.store.backend, settings.model.backend, settings.embedder.backend) == (
        "sqlite",
        "rules",
        "hashing",
    )
    assert (settings.reranker.backend, settings.runtime.backend) == ("none", "local")
    assert (settings.model.timeout_s, settings.model.max_concurrency, settings.model.patience_s) == (
        120,
        32,
        600,
    )
    pipeline = settings.pipeline
    assert (pipeline.extraction, pipeline.resolution) == ("combined", "batched")
    assert (pipeline.reflect_rounds, pipeline.previous_episodes) == (0, 4)
    assert (pipeline.unit_tokens, pipeline.unit_overlap) == (1200, 100)
    assert (settings.runtime.window, settings.runtime.state_mb) == (128, 1024)


def test_a_variable_wins_over_the_file_and_an_argument_over_both(tmp_path):
    config = write(tmp_path, '[model]\nbase_url = "http://file"\nname = "file"\n[runtime]\nwindow = 7\n')
    settings = load(
        config,
        environ={"KGRAY_MODEL_BASE_URL": "http://env", "KGRAY_RUNTIME_WINDOW": "9"},
        overrides={"runtime.window": 11, "model_name": "argument"},
    )
    assert settings.model.base_url == "http://env"
    assert settings.model.name == "argument"
    assert settings.runtime.window == 11


def test_a_relative_path_in_a_file_is_relative_to_that_file(tmp_path):
    config = write(tmp_path, '[model]\nscript = "answers.jsonl"\n')
    assert load(config, environ={}).model.script == tmp_path / "answers.jsonl"
    assert load(None, environ={"KGRAY_MODEL_SCRIPT": "a.jsonl"}).model.script == Path("a.jsonl")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[modle]\nx = 1", "modle in {f} is not a setting. The nearest one is model."),
        (
            '[model]\nbackedn = "rules"',
            "model.backedn in {f} is not a setting. The nearest one is model.backend.",
        ),
        (
            '[pipeline]\njudging = "statement"',
            "pipeline.judging in {f} is not a setting. The nearest one is pipeline.resolution.",
        ),
        ('model = "rules"', "model in {f} is not a table: write [model] and its keys below it."),
        ('[model]\ntimeout_s = "1"', 'model.timeout_s = "1" in {f}: a number from 1 to 1000000 is needed.'),
        (
            "[model]\nmax_concurrency = 0",
            "model.max_concurrency = 0 in {f}: a whole number from 1 to 1000000 is needed.",
        ),
        (
            "[runtime]\nwindow = true",
            "runtime.window = True in {f}: a whole number from 1 to 1000000 is needed.",
        ),
        ("[store]\nuri = 3", "store.uri = 3 in {f}: a text in quotes is needed."),
        ('[store]\nuri = ""', 'store.uri = "" in {f}: a text that is not empty is needed.'),
        (
            '[reranker]\nbackend = "x"',
            'reranker.backend = "x" in {f}: use one of "none", "bge", "http".',
        ),
        (
            '[ontology]\nrelation = "x"',
            "ontology.relation in {f} is not a setting. The nearest one is ontology.relations.",
        ),
        (
            "[ontology.relations]\nX = 1",
            "ontology.relations.X in {f} is not a table: write [ontology.relations.X] and its keys below it.",
        ),
    ],
)
def test_an_invalid_file_gets_an_error_with_key_and_file(tmp_path, text, message):
    config = write(tmp_path, text)
    with pytest.raises(SettingsError) as caught:
        load(config, environ={})
    assert str(caught.value) == message.format(f=config)


@pytest.mark.parametrize(
    "text",
    [b"[model", b"\xff\xfe", b"a = " + b"[" * 3000, b"#" * (1 << 21)],
    ids=["open table", "bytes", "deep", "long"],
)
def test_an_invalid_toml_file_gets_a_clear_error(tmp_path, text):
    path = tmp_path / "kgray.toml"
    path.write_bytes(text)
    with pytest.raises(SettingsError, match=r"kgray\.toml") as caught:
        load(path, environ={})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("KGRAY_MODEL_BASEURL", "KGRAY_MODEL_BASE_URL"),
        ("KGRAY_MODEL_CACHE_MB", "KGRAY_MODEL_NAME"),  # a setting of older versions
    ],
)
def test_an_unknown_variable_names_the_nearest_known_one(name, nearest):
    with pytest.raises(SettingsError) as caught:
        load(None, environ={name: "1"})
    assert str(caught.value) == f"{name} in the environment is not a setting. The nearest one is {nearest}."


def test_data_config_and_test_variables_are_not_settings():
    environ = {"KGRAY_DATA": "x", "KGRAY_CONFIG": "y", "KGRAY_TEST_KILL": "1", "HOME": "/"}
    assert load(None, environ=environ) == Settings()


def test_an_empty_variable_counts_as_unset():
    assert load(None, environ={"KGRAY_MODEL_BASE_URL": ""}) == Settings()


def test_a_wrong_value_in_a_variable_names_the_variable():
    with pytest.raises(SettingsError) as caught:
        load(None, environ={"KGRAY_RUNTIME_WINDOW": "many"})
    assert str(caught.value) == (
        'KGRAY_RUNTIME_WINDOW = "many" in the environment: a whole number from 1 to 1000000 is needed.'
    )


def test_an_unknown_argument_names_the_nearest_known_one():
    with pytest.raises(SettingsError, match="The nearest one is model_backend"):
        load(None, environ={}, overrides={"model_backed": "rules"})


def test_secrets_are_hidden_in_printed_settings(tmp_path):
    config = write(tmp_path, '[model]\napi_key = "hunter2"\n[store]\npassword = "swordfish"\n')
    settings = load(config, environ={"KGRAY_EMBEDDER_API_KEY": "sesame"})
    for word in ("hunter2", "swordfish", "sesame"):
        assert word not in repr(settings)
    assert settings.model.api_key == Secret("hunter2")
    assert settings.model.api_key.reveal() == "hunter2"
    with pytest.raises(SettingsError) as caught:
        load(write(tmp_path, "[model]\napi_key = 12345678\n"), environ={})
    assert "12345678" not in str(caught.value)
    assert "model.api_key = ***" in str(caught.value)


def test_settings_are_pickled_without_secrets(tmp_path):
    """Workers get settings from other processes; a secret never travels with them."""
    settings = load(None, environ={"KGRAY_MODEL_SCRIPT": "a.jsonl", "KGRAY_RUNTIME_WINDOW": "9"})
    assert pickle.loads(pickle.dumps(settings)) == settings != Settings()  # noqa: S301 - our own bytes
    assert replace(settings, runtime=replace(settings.runtime, window=128)).runtime == RuntimeSettings()
    with pytest.raises(FrozenInstanceError):
        settings.runtime.window = 3
    secret = load(None, environ={"KGRAY_MODEL_API_KEY": "hunter2"})
    with pytest.raises(TypeError, match="a secret is not pickled") as caught:
        pickle.dumps(secret)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def test_a_wrong_value_in_the_file_is_reported_even_if_a_variable_wins(tmp_path):
    config = write(tmp_path, "[runtime]\nwindow = 0\n")
    with pytest.raises(SettingsError, match=r"^runtime\.window = 0 in .*kgray\.toml: a whole number from 1"):
        load(config, environ={"KGRAY_RUNTIME_WINDOW": "9"})


def test_a_none_argument_overrides_the_file(tmp_path):
    config = write(tmp_path, '[model]\nbackend = "scripted"\nscript = "a.jsonl"\n')
    assert load(config, environ={}, overrides={"model_backend": None, "model_script": None}) == Settings()


@pytest.mark.parametrize(
    ("environ", "line"),
    [
        (
            {"KGRAY_MODEL_BASE_URL": "localhost:8000"},
            (
                'KGRAY_MODEL_BASE_URL = "localhost:8000" in the environment: an address such as '
                "http://localhost:8000/v1 is needed (http, https; a host; no user or password: "
                "the api_key is for that)."
            ),
        ),
        (
            {"KGRAY_STORE_URI": "bolt://me:hunter2@host"},
            (
                "KGRAY_STORE_URI = *** in the environment: an address such as bolt://localhost:7687 is "
                "needed (neo4j, neo4j+s, neo4j+ssc, bolt, bolt+s, bolt+ssc; a host; no user or password: "
                "store.user and store.password are for that)."
            ),
        ),
        (
            {"KGRAY_EMBEDDER_API_KEY": "two\nlines"},
            "KGRAY_EMBEDDER_API_KEY = *** in the environment: one line of plain ASCII text is needed.",
        ),
    ],
)
def test_an_unusable_address_or_key_is_reported_on_reading(environ, line):
    with pytest.raises(SettingsError) as caught:
        load(None, environ=environ)
    assert str(caught.value) == line


@pytest.mark.parametrize(
    ("overrides", "section", "line"),
    [
        (
            {"model_backend": "scripted"},
            "model",
            'model.backend = "scripted" needs model.script (KGRAY_MODEL_SCRIPT): the file of answers.',
        ),
        (
            {"embedder_backend": "openai"},
            "embedder",
            (
                'embedder.backend = "openai" needs embedder.base_url (KGRAY_EMBEDDER_BASE_URL): the '
                "server's address, mostly ending in /v1."
            ),
        ),
        (
            {"store_backend": "neo4j"},
            "store",
            (
                'store.backend = "neo4j" needs store.uri (KGRAY_STORE_URI): the server\'s address, such as '
                "bolt://localhost:7687."
            ),
        ),
    ],
)
def test_missing_requirements_of_a_backend_are_reported_on_building(overrides, section, line):
    settings = load(None, environ={}, overrides=overrides)
    with pytest.raises(SettingsError) as caught:
        require(settings, section)
    assert str(caught.value) == line


def test_relations_come_from_tables_and_variables(tmp_path):
    config = write(tmp_path, '[ontology.relations.OWNS]\ncardinality = "single"\nexcludes = ["LENDS"]\n')
    environ = {
        "KGRAY_ONTOLOGY_RELATIONS_OWNS_CARDINALITY": "many",
        "KGRAY_ONTOLOGY_RELATIONS_SITS_NEXT_TO_SYMMETRIC": "true",
        "KGRAY_ONTOLOGY_RELATIONS_SITS_NEXT_TO_EXCLUDES": "A, B",
    }
    relations = load(config, environ=environ).ontology.relations
    assert {name: dict(table) for name, table in relations.items()} == {
        "OWNS": {"cardinality": "many", "excludes": ["LENDS"]},
        "SITS_NEXT_TO": {"symmetric": True, "excludes": ["A", "B"]},
    }
    with pytest.raises(SettingsError, match="KGRAY_ONTOLOGY_RELATIONS_OWNS_COLOR in the environment"):
        load(None, environ={"KGRAY_ONTOLOGY_RELATIONS_OWNS_COLOR": "x"})


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            {"pipeline_extraction": "separate"},
            (
                'pipeline.extraction = "separate" is for a language model, '
                'and model.backend is "rules": use "combined".'
            ),
        ),
        (
            {"pipeline_reflect_rounds": 2},
            'pipeline.reflect_rounds = 2 is for a language model, and model.backend is "rules": use 0.',
        ),
        ({"pipeline_reflect_rounds": 2, "model_backend": "openai"}, None),
        ({"pipeline_reflect_rounds": 2, "pipeline_extraction": "separate", "model_backend": "openai"}, None),
    ],
)
def test_missing_requirements_of_a_pipeline_setting_are_reported(settings, line):
    assert list(unbuilt(load(None, environ={}, overrides=settings))) == ([line] if line else [])


def test_an_overlap_as_long_as_a_unit_is_refused():
    line = (
        "pipeline.unit_overlap = 200 is as long as a text unit (pipeline.unit_tokens = 200): "
        "set a smaller overlap."
    )
    with pytest.raises(SettingsError, match=f"^{re.escape(line)}$"):
        load(None, environ={"KGRAY_PIPELINE_UNIT_TOKENS": "200"}, overrides={"pipeline_unit_overlap": 200})
    complete_result = load(None, environ={}, overrides={"pipeline_unit_tokens": 0})
    assert (complete_result.pipeline.unit_tokens, complete_result.pipeline.unit_overlap) == (0, 100)


def test_entity_types_are_read_like_relations(tmp_path):
    config = tmp_path / "kgray.toml"
    config.write_text('[ontology.entities.Ship]\ndescription = "a vessel"\n[ontology.relations.OWNS]\n')

    settings = load(config, environ={}, overrides={"ontology_entities": {"Port": {}}})

    assert {name: dict(keys) for name, keys in settings.ontology.entities.items()} == {
        "Ship": {"description": "a vessel"},
        "Port": {},
    }
    assert list(settings.ontology.relations) == ["OWNS"]


def test_entity_types_come_from_variables_too(tmp_path):
    """A declared label is matched in capitals too; an undeclared label is used as typed."""
    config = write(tmp_path, '[ontology.entities.Ship]\ndescription = "a vessel"\n')
    environ = {
        "KGRAY_ONTOLOGY_ENTITIES_SHIP_ATTRIBUTES": "draught, flag",
        "KGRAY_ONTOLOGY_ENTITIES_SeaPort_DESCRIPTION": "where ships lie",
    }

    entities = load(config, environ=environ).ontology.entities

    assert {name: dict(keys) for name, keys in entities.items()} == {
        "Ship": {"description": "a vessel", "attributes": ["draught", "flag"]},
        "SeaPort": {"description": "where ships lie"},
    }
    output = shipped().extended({}, entities).entities
    assert output["Ship"].attributes == ("draught", "flag")
    with pytest.raises(SettingsError, match="KGRAY_ONTOLOGY_ENTITIES_SHIP_COLOR in the env"):
        load(None, environ={"KGRAY_ONTOLOGY_ENTITIES_SHIP_COLOR": "x"})


def test_the_default_settings_have_all_requirements():
    require_built(Settings())


def test_the_data_and_config_paths_follow_the_documented_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert data_folder(None, {}) == Path("kgray-data")
    assert data_folder(None, {"KGRAY_DATA": "d"}) == Path("d")
    assert data_folder("x", {"KGRAY_DATA": "d"}) == Path("x")
    data = tmp_path / "d"
    data.mkdir()
    assert config_file(None, data, {}) is None
    named_file = write(tmp_path, "")
    assert config_file(None, data, {}) == Path("kgray.toml")
    data_file = write(data, "")
    assert config_file(None, data, {}) == data_file
    assert config_file(None, data, {"KGRAY_CONFIG": str(named_file)}) == named_file
    assert config_file(str(data_file), data, {"KGRAY_CONFIG": str(named_file)}) == data_file
    with pytest.raises(SettingsError, match=r"KGRAY_CONFIG names 'nope\.toml', and there is no such file"):
        config_file(None, data, {"KGRAY_CONFIG": "nope.toml"})
