"""Print the tables and every statement of the store: `python -m kgray.stores.sqlite`."""

from __future__ import annotations

from kgray.stores.sqlite.schema import tables
from kgray.stores.sqlite.statements import all_statements

if __name__ == "__main__":
    print(tables())  # noqa: T201 - what this is run for
    for name, statement in all_statements().items():
        print(f"-- {name}\n{statement};\n")  # noqa: T201
