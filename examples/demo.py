"""The questions worth asking, put to the three example files: `make demo`.

Everything is done by the `kgray` command, in a folder `.demo` that is made afresh (or in the new folder
that is named: `python examples/demo.py FOLDER`). Each command is printed before its output, so that any
of them can be typed again. A Ray on this machine ingests: it is started once, and ends before the questions,
which need none; it ends, too, where something fails. With KGRAY_RUNTIME_BACKEND=local each command ingests
what it adds, and no Ray is started.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
KGRAY = Path(sys.executable).with_name("kgray")
PORT = 8321  # of the page
FOLDER = Path(".demo")  # from ROOT, where the commands run
RUNTIME = os.environ.get("KGRAY_RUNTIME_BACKEND", "ray")
SETTINGS = f'[runtime]\nbackend = "{RUNTIME}"  # who ingests; reading needs none\n'
ORDER = {"models": 0, "embedder": 1, "sequencer": 2, "writer": 3, "scheduler": 4}
LATER = "2026-02-01"  # the team's messages of this day and after are added last, as they would be in life


def heading(text: str) -> None:
    """Print what comes next, and why it is asked."""
    print(f"\n=== {text}\n", flush=True)


def kgray(folder: Path, *arguments: str) -> None:
    """Print one command and run it; the demo ends with the command's exit code where it fails."""
    command = [*arguments, "--data", str(folder)]
    print(f"$ kgray {shlex.join(command)}", flush=True)
    done = subprocess.run([KGRAY, *command], cwd=ROOT, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
    print(flush=True)


def pictures(folder: Path, *wanted: tuple[str, str, tuple[str, ...]]) -> None:
    """Print commands in pipes and run them: histories of entities, drawn over time.

    wanted: (name, group, options of the drawing), each; the histories are read side by side.
    """
    running = []
    for name, group, options in wanted:
        history = ["history", name, "--group", group, "--json", "--data", str(folder)]
        draw = ["examples/timeline.py", *options]
        running.append((history, draw, subprocess.Popen([KGRAY, *history], cwd=ROOT, stdout=subprocess.PIPE)))
    for history, draw, process in running:
        print(f"$ kgray {shlex.join(history)} | python {shlex.join(draw)}", flush=True)
        found, _ = process.communicate()
        if process.returncode:
            raise SystemExit(process.returncode)
        subprocess.run([sys.executable, *draw], cwd=ROOT, check=True, input=found)
        print(flush=True)


def part(folder: Path, name: str, *, later: bool) -> str:
    """Write one part of the team's messages into the demo's folder and return its path."""
    lines = (ROOT / "examples" / "team.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    chosen = [line for line in lines if (line.split('"at": "')[1] >= LATER) is later]
    (ROOT / folder / name).write_text("".join(chosen), encoding="utf-8")
    return str(folder / name)


@contextmanager
def ray(folder: Path) -> Iterator[None]:
    """Have a Ray with its actors up, which ends with the block, however that ends."""
    try:
        kgray(folder, "up")
        yield
    finally:
        kgray(folder, "down")


def add_everything(folder: Path) -> str:
    """Add the examples and return the moment between the two parts of the team's chat."""
    heading("Three streams go in: a support chat, a price list, the first months of a team chat")
    first = part(folder, "team-until-january.jsonl", later=False)
    kgray(folder, "add", "examples/support.jsonl", "examples/catalogue.jsonl", first)
    between = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    heading("Later, the rest of the team chat arrives; in it Dana tells that she moved long ago")
    kgray(folder, "add", part(folder, "team-from-february.jsonl", later=True))
    return between


def tell_what_ran_where(folder: Path) -> None:
    """Print the processes that ingested, and what each has done."""
    heading("What ran where")
    command = ["status", "--json", "--data", str(folder)]
    print(f"$ kgray {shlex.join(command)}", flush=True)
    done = subprocess.run([KGRAY, *command], cwd=ROOT, check=False, stdout=subprocess.PIPE)
    if done.returncode:
        raise SystemExit(done.returncode)
    told = json.loads(done.stdout)["runtime"]
    print(f"Ray at {told['address']}, {len(told['actors'])} actors, each a process of its own:")
    for name, row in sorted(told["actors"].items(), key=lambda item: ORDER[item[0].rpartition("-")[0]]):
        print(f"  {name:12} process {row['pid']:<8} {deeds(name, row)}")
    print()


def deeds(name: str, row: dict[str, Any]) -> str:
    """Return what an actor has done, in words."""
    if name.startswith("models"):
        return f"read {row['read']} episodes, answered {row['done'] - row['read']} questions"
    if name.startswith("embedder"):
        return f"turned {row['done']} lists of texts into vectors"
    if name.startswith("writer"):
        (epoch,) = row["epochs"].values()  # of the one shard
        return f"carried out {row['writes']} writes in {row['batches']} transactions, as epoch {epoch}"
    if name.startswith("scheduler"):
        return "refreshes communities at the times of `kgray schedule`; none was asked for"
    totals = row["totals"]
    return f"decided {totals['committed']} episodes, each group's in order; {totals['failed']} failed"


def ask(folder: Path, between: str) -> None:
    """Put the questions; `between` is the moment before the late messages were known."""
    heading("One question at three moments: before, between and after Alice's changes of job")
    for moment in ("2025-10-01", "2026-02-01", "2026-06-01"):
        question = ("search", "Where does Alice Nguyen work?", "--group", "team", "--scope", "fact")
        kgray(folder, *question, "--limit", "3", "--as-of", moment)
    heading("The price of a printer on Black Friday, and in May")
    for moment in ("2025-11-28", "2026-05-30"):
        question = (
            "search",
            "How many USD does the Kestrel LaserPro M28 cost?",
            "--group",
            "catalogue",
            "--scope",
            "fact",
        )
        kgray(folder, *question, "--limit", "1", "--as-of", moment)
    heading("Where did Dana live in December? As known before the late message, and as known now")
    dana = ("search", "Where does Dana Levy live?", "--group", "team", "--scope", "fact", "--limit", "1")
    kgray(folder, *dana, "--as-of", "2025-12-15", "--known-at", between)
    kgray(folder, *dana, "--as-of", "2025-12-15")
    heading("What an agent would be told before it answers Martha")
    wrong = "What was wrong with the pages of Martha's printer, and what helped?"
    kgray(folder, "context", wrong, "--group", "support", "--tokens", "800")
    heading("Who and what belongs together in the team's chat")
    kgray(folder, "communities", "refresh", "--group", "team")
    kgray(folder, "communities", "list", "--group", "team")
    who = ("search", "Who is at Lumen Systems?", "--group", "team", "--scope", "community")
    kgray(folder, *who, "--limit", "1")
    heading("What a customer's printer went through, and one person's jobs, each line with its source")
    jobs = ("--relation", "WORKS_AT")
    pictures(folder, ("Kestrel LaserPro M28", "support", ()), ("Alice Nguyen", "team", jobs))


def over_ray(folder: Path) -> str:
    """Ingest the examples through a Ray; return the moment between the two parts of the team's chat."""
    heading("A new folder, and a Ray on this machine that will ingest what is added to it")
    with ray(folder):
        between = add_everything(folder)
        tell_what_ran_where(folder)
        heading("Ray has done its part: it ends, and reading goes on without it")
    return between


def alone(folder: Path) -> str:
    """Ingest the examples in the commands that add them; return the same moment."""
    heading("A new folder")
    kgray(folder, "init")
    return add_everything(folder)


def page(folder: Path) -> None:
    """Tell where the page on the demo's data is; with PAGE=yes serve it until Ctrl-C."""
    heading("The page: the graph at any moment, and the reason for each fact")
    command = ["serve", "--port", str(PORT), "--data", str(folder)]
    print(f"$ kgray {shlex.join(command)}\nhttp://127.0.0.1:{PORT}/#group=team", flush=True)
    if os.environ.get("PAGE") == "yes":
        raise SystemExit(subprocess.run([KGRAY, *command], cwd=ROOT, check=False).returncode)
    print("\nThat command serves it; so does `make demo PAGE=yes`, after the questions.")


def stopped(number: int, _frame: object) -> None:
    """End in order, Ray too, where the demo is asked to end."""
    raise SystemExit(128 + number)


def main() -> None:
    """Run the demo: in the folder that is named, which must be new, else in `.demo`."""
    signal.signal(signal.SIGTERM, stopped)
    folder = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else FOLDER
    if folder == FOLDER:
        if (ROOT / FOLDER / "ray.json").exists():  # of a demo that was killed
            kgray(folder, "down")
        shutil.rmtree(ROOT / FOLDER, ignore_errors=True)
    (ROOT / folder).mkdir(parents=True)
    (ROOT / folder / "kgray.toml").write_text(SETTINGS, encoding="utf-8")
    ask(folder, over_ray(folder) if RUNTIME == "ray" else alone(folder))
    page(folder)


if __name__ == "__main__":
    main()
