"""A command of kgray as a job of Ray: `ray job submit -- python -m kgray.cli.job backfill s3://...`.

The same commands, options and exit codes as `kgray`. In a submitted job they ingest and refresh through that
Ray: with the actors of `kgray up` if they run, else with actors that the job starts and ends. Submitted again
after it was killed, a command goes on where it was.
"""

from __future__ import annotations

import os
import sys

from kgray.cli import cli


def main(*words: str) -> None:
    """Run the command of these words and of the command line; in a submitted job, through its Ray."""
    if "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ:  # Ray sets it for the entry point of a job
        os.environ.setdefault("KGRAY_RUNTIME_BACKEND", "ray")
    cli([*words, *sys.argv[1:]])


if __name__ == "__main__":
    main()
