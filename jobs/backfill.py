"""The bulk backfill as a job: `ray job submit -- python jobs/backfill.py archive/ --group team`.

The options and exit codes of `kgray backfill`. Submitted again after it was killed, it goes on where it was.
From an installed package: `python -m kgray.cli.job backfill`.
"""

from __future__ import annotations

from kgray.cli.job import main

if __name__ == "__main__":
    main("backfill")
