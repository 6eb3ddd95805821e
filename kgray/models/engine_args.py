"""The arguments of an engine of vLLM: kgray's own, and the profile's, checked by vLLM's own parser."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Mapping, MutableMapping
from typing import Any, NoReturn

from kgray.errors import SettingsError
from kgray.settings.engine import EngineLimits

# Compact JSON by the schema; with `guidance` all replies of a random model were valid, with `xgrammar` half.
_STRUCTURED = {"backend": "guidance", "disable_any_whitespace": True}
# Variables that hold a secret. vLLM sends its environment to its workers as an argument of a call, which Ray
# keeps in its logs of events, so these leave the process of an engine before it starts.
_SECRET = re.compile(r"(PASSWORD|SECRET|TOKEN|API_KEY|ACCESS_KEY|CREDENTIALS)$")
# Secrets that the processes of an engine need: variable -> the variable that names a file with it.
_BY_FILE = {"RAY_AUTH_TOKEN": "RAY_AUTH_TOKEN_PATH", "HF_TOKEN": "HF_TOKEN_PATH"}


def arguments_of(name: str, limits: EngineLimits) -> dict[str, tuple[Any, str]]:
    """Return each argument of the engine of a model: its value, and the setting that it comes from."""
    chosen = limits.args.get("structured_outputs_config", {})
    kgray: dict[str, tuple[Any, str]] = {
        "model": (name, "model.name"),
        "max_num_seqs": (limits.max_num_seqs, "engine.max_num_seqs"),
        "max_num_batched_tokens": (limits.max_num_batched_tokens, "engine.max_num_batched_tokens"),
        "max_model_len": (limits.max_model_len, "engine.max_model_len"),
        "gpu_memory_utilization": (limits.memory_share, "engine.memory_share"),
        "tensor_parallel_size": (limits.tensor_parallel, "engine.tensor_parallel"),
        "distributed_executor_backend": ("ray" if limits.cards > 1 else None, "the number of cards"),
        "enforce_eager": (limits.eager, "engine.eager"),
        "enable_prefix_caching": (True, "kgray"),
        "scheduling_policy": ("priority", "kgray: answers to users go before ingestion"),
        "structured_outputs_config": ({**_STRUCTURED, **chosen}, "kgray" + ", engine.args" * bool(chosen)),
    }
    return kgray | {name: (value, "engine.args") for name, value in limits.args.items() if name not in kgray}


def parsed(model: str, limits: EngineLimits) -> Any:  # noqa: ANN401 - vLLM's AsyncEngineArgs
    """Return vLLM's arguments of an engine. Raises SettingsError for a wrong argument of the profile."""
    from vllm import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    class Parser(FlexibleArgumentParser):  # type: ignore[misc]  # a base without types
        """Raises in place of ending the process."""

        def error(self, message: str) -> NoReturn:
            line = " ".join(message.split())[:300].rstrip(".")
            raise SettingsError(f"engine.args is refused by vLLM: {line}.")

    values = {name: value for name, (value, _) in arguments_of(model, limits).items()}
    # Tables of which kgray sets a part are in `values` already.
    given = {name: value for name, value in limits.args.items() if name != "structured_outputs_config"}
    if given:
        parser = Parser()
        AsyncEngineArgs.add_cli_args(parser)
        names = {action.dest for action in parser._actions} - {"help"}  # noqa: SLF001 - no other list
        for name in given:
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1, cutoff=0.0)[0]
                raise SettingsError(
                    f"engine.args.{name} is no argument of vLLM's engine. The nearest one is {near}."
                )
        space = parser.parse_args([word for name, value in given.items() for word in _words(name, value)])
        values |= {name: getattr(space, name) for name in given}
    return AsyncEngineArgs(**values)


def _words(name: str, value: Any) -> list[str]:  # noqa: ANN401 - a value of TOML
    """Return an argument as the words of a command line."""
    option = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{option}" if value else f"--no-{option}"]
    if isinstance(value, list | tuple):
        return [f"--{option}", *map(str, value)]
    return [f"--{option}={json.dumps(value) if isinstance(value, Mapping) else value}"]


def strip_secrets(environ: MutableMapping[str, str]) -> list[str]:
    """Remove secrets from the environment of a process that will start an engine; return their names.

    A secret that the engine needs moves into a file in memory, which ends with this process.
    """
    names = sorted(name for name in environ if _SECRET.search(name))
    for name in names:
        secret = environ.pop(name)
        if (path := _BY_FILE.get(name)) and path not in environ:
            file = os.memfd_create(name)
            os.write(file, secret.encode())
            environ[path] = f"/proc/{os.getpid()}/fd/{file}"
    return names
