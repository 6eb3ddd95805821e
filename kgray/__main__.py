"""`python -m kgray`: the command where it is not on the path."""

from __future__ import annotations

from kgray.cli import main

main()
