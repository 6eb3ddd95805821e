"""The command line in its own folder, with the scripted model, which reads the script of the test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from kgray.cli import cli
from tests.waiting import HANGS_S


@dataclass
class Answer:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.out.endswith("\n")
        assert self.out.count("\n") == 1, "one document, one line"
        return json.loads(self.out)


@dataclass
class Shell:
    """`kgray` in a folder; in this process, or in a new process."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict)

    def __call__(self, *args: str, stdin: str | bytes | None = None) -> Answer:
        result = CliRunner().invoke(cli, list(args), input=stdin, env=self.env)
        assert "Traceback" not in result.stderr, result.stderr
        return Answer(result.exit_code, result.stdout, result.stderr)

    def start(self, *args: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start a real process."""
        command = [sys.executable, "-c", "from kgray.cli import main; main()", *args]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        environ = {**os.environ, **self.env}
        return subprocess.Popen(command, cwd=self.folder, env=environ, **(pipes | options))

    def process(self, *args: str, stdin: bytes | None = None) -> Answer:
        """Run a real process to its end."""
        running = self.start(*args, stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL)
        out, err = running.communicate(stdin, timeout=HANGS_S)
        return Answer(running.returncode, out.decode(), err.decode())

    def write(self, name: str, *rows: Any) -> str:
        """Write JSON lines; text and bytes as they are."""
        path = self.folder / name
        if len(rows) == 1 and isinstance(rows[0], str | bytes):
            path.write_bytes(rows[0] if isinstance(rows[0], bytes) else rows[0].encode())
        else:
            path.write_text(
                "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8"
            )
        return name

    def script(self, *rows: Any) -> None:
        """Write the answers of the model."""
        self.write("script.jsonl", *rows)


@dataclass
class Bench(Shell):
    """`python -m bench` in a folder; in this process, or in a new process."""

    def script_of(self, code: str) -> str:
        """Run a script to its end in a new process; return its output."""
        environ = {**os.environ, **self.env}
        outcome = subprocess.run(
            [sys.executable, "-P", "-c", code], env=environ, capture_output=True, text=True, check=True
        )
        return outcome.stdout

    def __call__(self, *args: str, stdin: str | bytes | None = None) -> Answer:
        from bench.commands import bench

        assert stdin is None, "no measurement reads it"
        result = CliRunner().invoke(bench, list(args), env=self.env)
        return Answer(result.exit_code, result.stdout, result.stderr)

    def start(self, *args: str, **options: Any) -> subprocess.Popen[bytes]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        command = [sys.executable, "-P", "-m", "bench", *args]
        environ = {**os.environ, **self.env}
        return subprocess.Popen(command, cwd=self.folder, env=environ, **(pipes | options))


def triple(source: str, relation: str, target: Any, **extra: Any) -> dict[str, Any]:
    return {"source": source, "relation": relation, "target": target, **extra}


def triples_row(client_id: str, at: str, *triples: dict[str, Any], **extra: Any) -> dict[str, Any]:
    return {"id": client_id, "at": at, "group": "team", "triples": list(triples), **extra}


JOBS = (
    triples_row("t1", "2026-01-01", triple("Alice Nguyen", "WORKS_AT", "Acme"), source="crm"),
    triples_row("t2", "2026-03-01", triple("Alice Nguyen", "WORKS_AT", "Beta"), source="crm"),
    triples_row("t3", "2026-03-05", triple("Mug", "COSTS", {"value": 9.5, "unit": "eur"}), source="shop"),
)
