"""The canonical dump as JSON lines, in memory that does not grow with the group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from kgray.domain.records import canonical
from kgray.graph import dump
from kgray.io.interchange.files import Rows, new_file
from kgray.io.interchange.snapshot import Snapshot
from kgray.storage.ledger import dumped_episodes


def write(snapshot: Snapshot, path: Path) -> Rows:
    """Write the lines of `kgray dump`."""
    counts = Counter[str]()
    snapshot.scratch.execute("CREATE TABLE lines (line TEXT)")

    def lines() -> Iterator[tuple[str]]:
        for row in _rows(snapshot):
            counts[row["type"]] += 1
            yield (canonical(row),)

    snapshot.scratch.pour("INSERT INTO lines VALUES (?)", lines())
    with new_file(path) as file:
        # Texts are compared by their UTF-8, which has the order of code points.
        file.writelines(
            f"{line}\n" for (line,) in snapshot.scratch.rows("SELECT line FROM lines ORDER BY line")
        )
    return dict(sorted(counts.items()))


def _rows(snapshot: Snapshot) -> Iterator[dump.DumpRow]:
    """Yield every row of the dump, unsorted, without facts that do not hold at `as_of`."""
    derived = snapshot.derived
    yield from map(dump.episode_row, dumped_episodes(snapshot.store, snapshot.group, snapshot.known_at))
    yield from map(dump.entity_row, snapshot.plain_entities())
    for mention in derived.mentions():
        yield dump.mention_row(mention, snapshot.episode_id(mention.sequence) or "", derived.fold)
    for name in derived.relations.names():
        yield dump.relation_row(derived.relations, name)
    for part in snapshot.derived_parts():
        graph, places = part.graph, part.graph.places()
        yield from map(dump.statement_row, graph.statements.values())
        for item in part.evidence:
            statement = places.get((item.sequence, item.ordinal))
            yield dump.evidence_row(item, part.episode_ids[item.sequence], statement)
        yield from dump.verdict_rows(part.verdicts, graph.judged, snapshot.episode_id)
    yield from map(dump.merge_row, derived.fold.in_force)
    yield from map(dump.fact_row, snapshot.facts())
