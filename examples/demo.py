"""The questions worth asking, put to the three example files: `make demo`.

Everything is done by the `kgray` command, in a folder `.demo` that is made afresh (or in the new folder
that is named: `python examples/demo.py FOLDER`). Each command is printed before its output, so that any
of them can be typed again.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KGRAY = Path(sys.executable).with_name("kgray")
FOLDER = Path(".demo")  # from ROOT, where the commands run
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


def part(folder: Path, name: str, *, later: bool) -> str:
    """Write one part of the team's messages into the demo's folder and return its path."""
    lines = (ROOT / "examples" / "team.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    chosen = [line for line in lines if (line.split('"at": "')[1] >= LATER) is later]
    (ROOT / folder / name).write_text("".join(chosen), encoding="utf-8")
    return str(folder / name)


def add_everything(folder: Path) -> str:
    """Add the examples and return the moment between the two parts of the team's chat."""
    heading("A new folder, and three streams: a support chat, a price list, the first months of a team chat")
    kgray(folder, "init")
    first = part(folder, "team-until-january.jsonl", later=False)
    kgray(folder, "add", "examples/support.jsonl", "examples/catalogue.jsonl", first)
    between = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    heading("Later, the rest of the team chat arrives; in it Dana tells that she moved long ago")
    kgray(folder, "add", part(folder, "team-from-february.jsonl", later=True))
    return between


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
    kgray(folder, "context", "What was wrong with Martha's printer?", "--group", "support", "--tokens", "400")
    heading("Everything that was ever so about Alice, and what ended it")
    kgray(folder, "history", "Alice Nguyen", "--group", "team")


def main() -> None:
    """Run the demo: in the folder that is named, which must be new, else in `.demo`."""
    folder = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else FOLDER
    if folder == FOLDER:
        shutil.rmtree(ROOT / FOLDER, ignore_errors=True)
    (ROOT / folder).mkdir(parents=True)
    ask(folder, add_everything(folder))


if __name__ == "__main__":
    main()
