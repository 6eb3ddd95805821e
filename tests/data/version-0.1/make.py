"""Remake the data of an earlier version: `PYTHONPATH=. python tests/data/version-0.1/make.py CODE [FOLDER]`.

CODE is a checkout of that version, whose command line runs the story below twice: in a data folder, and on a
Neo4j server that is started for it. The tests' loader of dumps comes from the checkout around this file.
FOLDER gets the files; the default is the folder of this file.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.neo4j_dump import database_dump
from tests.neo4j_server import driver_of, started

FOLDER = Path(__file__).parent
TEAM, DESK = "team", "desk"
# Properties of a shard's lease that name the last process which held it.
LEASE = ("holder", "token", "host", "pid", "beat")
EMBEDDER = '[embedder]\nbackend = "hashing"\ndimensions = 16\n'
RULES = EMBEDDER + '[records]\nkey = "sku"\n'
SCRIPTED = EMBEDDER + '[model]\nbackend = "scripted"\nscript = "script.jsonl"\n'
NEO4J = '[store]\nbackend = "neo4j"\nuri = "{uri}"\nuser = "{user}"\n'

# Messages for the offline rules: jobs that follow one another, ends, dates.
MESSAGES = [
    ("m1", "Alice Nguyen", "2025-01-10", "I work at Acme. I live in Berlin."),
    ("m2", "Bob Weber", "2025-02-03", "I work at Initech since 2021. I like tea."),
    ("m3", "Alice Nguyen", "2025-03-15", "I now work at Borealis."),
    ("m4", "Bob Weber", "2025-04-01", "I no longer work at Initech. I moved to Hamburg."),
    ("m5", "Carol Diaz", "2025-04-20", "Alice Nguyen lives in Munich since March 2025."),
    ("m6", "Carol Diaz", "2025-05-02", "I work at Acme. I know Bob Weber."),
    ("m7", "Bob Weber", "2025-05-09", "I like coffee."),
    ("m8", "Carol Diaz", "2025-06-11", "I own Lagoon House."),
]
RECORDS = [
    ("r1", "2025-02-01", {"sku": "LAMP-7", "name": "Desk lamp", "status": "in stock", "price": 39.5}),
    ("r2", "2025-03-01", {"sku": "LAMP-7", "name": "Desk lamp", "status": "sold out", "price": 42}),
    ("r3", "2025-03-05", {"sku": "CHAIR-2", "name": "Oak chair", "status": "in stock"}),
]
TRIPLES = [
    {"source": "Acme", "relation": "HEADQUARTERED_IN", "target": "Berlin", "valid_at": "2010-05-01"},
    {"source": "Borealis", "relation": "COSTS", "target": {"value": 120, "unit": "eur"}},
    {"source": "Dana Fox", "relation": "REPORTS_TO", "target": "Alice Nguyen", "valid_at": None,
     "invalid_at": "2025-01-31"},
]  # fmt: skip
NOTE = "Alice Nguyen works at Acme.\n\nBob Weber lives in Hamburg.\n"


def fact(source: int, relation: str, target: int | None, sentence: str, **fields: Any) -> dict[str, Any]:
    """Return a fact of a scripted reply."""
    end = {} if target is None else {"target": target}
    return {"source": source, "relation": relation, "fact": sentence, **end, **fields}


def answer(kind: str, items: list[Any], reply: dict[str, Any]) -> dict[str, Any]:
    """Return a scripted answer to a question."""
    return {"question": {"kind": kind, "items": items}, "answer": reply}


# Scripted readings, with ends by index: they raise questions of every kind.
SAID = [
    ("s1", "Erin Moss", "2025-05-01", "I mentor Ann Lee and play the cello part-time.",
     ["Erin Moss", "Ann Lee", "cello"],
     [fact(0, "MENTORS", 1, "Erin Moss mentors Ann Lee"),
      fact(0, "PLAYS", 2, "Erin Moss plays the cello part-time")]),
    ("s2", "Erin Moss", "2025-05-12", "Ann from sales met Gil Roy. I mentor Gil now, not Ann.",
     ["Erin Moss", "Ann", "Gil Roy"],
     [fact(1, "MET", 2, "Ann met Gil Roy", kind="happened"),
      fact(0, "MENTORS", 2, "Erin Moss mentors Gil Roy")]),
    ("s3", "Gil Roy", "2025-06-01", "Erin coaches me. She plays the cello full-time.",
     ["Gil Roy", "Erin Moss", "cello"],
     [fact(1, "COACHES", 0, "Erin Moss coaches Gil Roy"),
      fact(1, "PLAYS", 2, "Erin Moss plays the cello full-time")]),
    ("s4", "Gil Roy", "2025-06-20", "I lead the Harbour project, with a budget of 5000 EUR.",
     ["Gil Roy", "Harbour project"],
     [fact(0, "LEADS", 1, "Gil Roy leads the Harbour project"),
      fact(1, "HAS_BUDGET", None, "The Harbour project has a budget of 5000 EUR",
           value={"value": 5000, "unit": "EUR"})]),
    ("s5", "Erin Moss", "2025-07-01", "Gil stopped leading the Harbour project; I lead it since 28 June.",
     ["Erin Moss", "Gil Roy", "Harbour project"],
     [fact(1, "LEADS", 2, "Gil Roy led the Harbour project", kind="ended", invalid_at="2025-06-28"),
      fact(0, "LEADS", 2, "Erin Moss leads the Harbour project", valid_at="2025-06-28")]),
]  # fmt: skip
ERRORS = [("f1", "refused"), ("f2", "invalid")]
ANSWERS = [
    answer("entity", ["Ann", ["Ann Lee"]], {"duplicate_of": 0}),
    answer("entity", ["Gil Roy", ["Bob Weber"]], {"duplicate_of": None}),
    answer("cardinality", ["MENTORS"], {"cardinality": "depends"}),
    answer(
        "variant",
        ["Erin Moss plays the cello full-time", ["Erin Moss plays the cello part-time"]],
        {"duplicate_of": None},
    ),
    answer("verdict", ["Erin Moss mentors Gil Roy", ["Erin Moss mentors Ann Lee"]], {"contradicts": [0]}),
    answer("relation", ["COACHES", ["MENTORS"]], {"same_as": True}),
]


# Answers for versions that compare statements pair by pair.
COMPARISONS = [
    answer("compare", ["Erin Moss coaches Gil Roy", ["Erin Moss mentors Gil Roy"]], {"answers": ["same"]}),
    answer(
        "compare",
        ["Erin Moss plays the cello full-time", ["Erin Moss plays the cello part-time"]],
        {"answers": ["contradicts"]},
    ),
]


def lines(rows: list[dict[str, Any]]) -> str:
    """Return JSON lines."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def message(client_id: str, speaker: str, day: str, text: str) -> dict[str, Any]:
    """Return a line of input."""
    return {"id": client_id, "speaker": speaker, "at": f"{day}T09:00:00Z", "text": text}


def script() -> str:
    """Return the file of the scripted model."""
    replies = [
        {"episode": row[0], "extraction": {"entities": [{"name": n} for n in row[4]], "facts": row[5]}}
        for row in SAID
    ]
    errors = [{"episode": client_id, "error": kind} for client_id, kind in ERRORS]
    return lines([*replies, *errors, *ANSWERS, *COMPARISONS])


class Story:
    """Runs an earlier version in one data folder."""

    def __init__(self, code: Path, folder: Path, store: str, environment: dict[str, str]) -> None:
        """Write the settings and the script into one folder; `store`: the settings of the store."""
        self._folder, self._code = folder, code
        self.moments: list[str] = []  # moments whose dumps are hashed at the end
        self._environment = {**environment, "PYTHONPATH": str(code)}
        folder.mkdir()
        (folder / "kgray.toml").write_text(store + RULES)
        (folder / "scripted.toml").write_text(store + SCRIPTED)
        (folder / "script.jsonl").write_text(script())

    def run(self, *arguments: str, rows: str | None = None, codes: tuple[int, ...] = (0,)) -> str:
        """Run a command on standard input `rows`; return its standard output."""
        command = [sys.executable, "-m", "kgray", *arguments, "--data", "."]
        process = subprocess.run(
            command,
            input=rows,
            env=self._environment,
            cwd=self._folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if process.returncode not in codes:
            failures = self.run("failures") if arguments[0] == "add" else ""
            raise SystemExit(
                f"{arguments} ended with {process.returncode}: {process.stdout}{process.stderr}{failures}"
            )
        return process.stdout

    def add(
        self, rows: list[dict[str, Any]], group: str, *options: str, codes: tuple[int, ...] = (0,)
    ) -> None:
        """Add lines to a group."""
        self.run("add", "-", "--group", group, *options, rows=lines(rows), codes=codes)

    def corrected(self, *arguments: str) -> str:
        """Run a correction of the team's; return its sequence."""
        return str(json.loads(self.run(*arguments, "--group", TEAM, "--json"))["sequence"])

    def play(self) -> None:
        """Leave rows of every kind that a version stores."""
        scripted = ("--config", "scripted.toml")
        self.run("init")
        self.add([message(*row) for row in MESSAGES], TEAM)
        self.add([message(*row[:4]) for row in SAID], TEAM, *scripted)
        failing = [
            message(client_id, "Erin Moss", "2025-07-02", f"What is {client_id}?") for client_id, _ in ERRORS
        ]
        self.add(failing, TEAM, *scripted, codes=(1,))
        self.run("retry", "--group", TEAM, "--episode", "f2", *scripted, codes=(1,))
        records = [
            {"id": client_id, "kind": "json", "at": day, "source": "shop", "text": record}
            for client_id, day, record in RECORDS
        ]
        self.add(records, DESK)
        self.add([{"id": "t1", "kind": "triples", "at": "2025-02-10", "triples": TRIPLES}], TEAM)
        note = [{"id": "n1", "kind": "text", "at": "2025-03-20", "source": "note", "text": NOTE}]
        self.add([*note, message(*MESSAGES[1])], DESK)
        self.add([{**note[0], "text": NOTE.replace("Acme", "Borealis")}], DESK, "--replace")

        self.moments.append(clock())
        self.corrected("merge", "Dana Fox", "Carol Diaz")
        self.corrected("split", "Ann Lee", "--surface", "Ann")
        self.corrected("undo", self.corrected("merge", "Acme", "Borealis"))
        self.corrected("distinct", "Bob Weber", "Carol Diaz")
        self.run("communities", "refresh")
        self.run("communities", "refresh", "--group", TEAM, "--cold")
        self.run("schedule", "add", "nightly", "--cron", "0 3 * * *", "--zone", "Europe/Berlin")
        self.run("keys", "add", "--groups", TEAM, "--scopes", "read")
        self.moments.append(clock())
        self.run("retract", "--group", TEAM, "--episode", "m6", "--yes")
        self.run("remove", "--group", TEAM, "--episode", "m3", "--yes")
        self.run("remove", "--group", DESK, "--episode", "r2", "--yes")
        waiting = [
            message("w1", "Alice Nguyen", "2025-08-01", "I live in Oslo."),
            message("w2", "Bob Weber", "2025-08-02", "I work at Acme."),
        ]
        self.add(waiting, TEAM, "--accept-only")
        self.run("retract", "--group", TEAM, "--episode", "w2", "--yes")

    def hashes(self) -> dict[str, dict[str, str]]:
        """Return the hash of each group's dump: now, and as known at the moments."""
        moments = {"now": (), **{moment: ("--known-at", moment) for moment in self.moments}}
        return {
            group: {
                name: self.run("dump", "--group", group, "--hash", *at).strip()
                for name, at in moments.items()
            }
            for group in (TEAM, DESK)
        }


def clock() -> str:
    """Return the clock, as `--known-at` takes it."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def archived(folder: Path) -> bytes:
    """Return the files of a data folder as a tar archive without owners and times."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz", compresslevel=9) as tar:
        for path in sorted(folder.iterdir()):
            entry = tarfile.TarInfo(f"data/{path.name}")
            entry.size, entry.mode = path.stat().st_size, 0o600
            tar.addfile(entry, io.BytesIO(path.read_bytes()))
    return archive.getvalue()


def main() -> None:
    """Write data.tar.gz, neo4j.jsonl.gz and hashes.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("code", type=Path, help="a checkout of an earlier version")
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER, help="where the files go")
    arguments = parser.parse_args()
    code, to = arguments.code.resolve(), arguments.folder
    to.mkdir(exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KGRAY_")}
    hashes: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        story = Story(code, Path(folder, "data"), "", environment)
        story.play()
        hashes["sqlite"] = story.hashes()
        (to / "data.tar.gz").write_bytes(archived(Path(folder, "data")))

        server = started(Path(folder, "server"))
        try:
            settings = NEO4J.format(uri=server.uri, user=server.user)
            secret = {"KGRAY_STORE_PASSWORD": server.password}
            story = Story(code, Path(folder, "neo4j"), settings, environment | secret)
            story.play()
            hashes["neo4j"] = story.hashes()
            with driver_of(server) as driver:
                (to / "neo4j.jsonl.gz").write_bytes(database_dump(driver, omit=LEASE))
        finally:
            server.kill()
    (to / "hashes.json").write_text(json.dumps(hashes, indent=2) + "\n")


if __name__ == "__main__":
    main()
