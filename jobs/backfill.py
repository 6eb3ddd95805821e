"""The bulk backfill as a job: `ray job submit -- python jobs/backfill.py archive/ --group team`.

The same command, options and exit codes as `kgray backfill`; with a name of your own for the submission, too.
`kgray backfill --submit` does it with an id that makes submitting again harmless.
"""

from __future__ import annotations

import sys

from kgray.cli import cli

if __name__ == "__main__":
    cli(["backfill", *sys.argv[1:]])
