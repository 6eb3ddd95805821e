"""The full refresh as a job: `ray job submit -- python jobs/refresh_communities.py --group team`.

The same command, options and exit codes as `kgray communities refresh`. A job that was killed has published
whole groups or nothing of them; started again it asks no model twice.
"""

from __future__ import annotations

import sys

from kgray.cli import cli

if __name__ == "__main__":
    cli(["communities", "refresh", *sys.argv[1:]])
