"""`python -m bench`."""

from __future__ import annotations

from bench.commands import bench

bench(prog_name="python -m bench")
