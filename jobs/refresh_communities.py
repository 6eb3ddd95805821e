"""The refresh of communities as a job: `ray job submit -- python jobs/refresh_communities.py --group team`.

The options and exit codes of `kgray communities refresh`. A job that was killed has published whole groups or
nothing of them; started again it asks no model twice. Schedules submit it by its module, which an installed
package has: `python -m kgray.cli.job communities refresh`.
"""

from __future__ import annotations

from kgray.cli.job import main

if __name__ == "__main__":
    main("communities", "refresh")
