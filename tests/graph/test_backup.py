"""Backups of an embedded store: of one moment while others write, the same in every row when restored."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from kgray.domain import times
from kgray.maintenance.transfer.backups import backup
from kgray.maintenance.transfer.restoring import restore
from kgray.memory.access import Access
from kgray.runtime.wiring import OpenStore
from kgray.schema.kinds import OWN
from kgray.settings import EmbedderSettings, Settings
from kgray.storage.ledger import accept
from kgray.storage.sqlite import FILE, open_sqlite
from kgray.storage.texts import parse_rows, rows_of, sum_of
from tests.graph.by_hand import WIDTH, append, draft, remove, tell
from tests.graph.engine import SMALL, Engine, WildJudge, in_group, triples, works
from tests.graph.test_copy import lived, moments

SETTINGS = Settings(embedder=EmbedderSettings(dimensions=WIDTH))


def opened(folder: Path) -> OpenStore:
    """Open the embedded store in a folder."""
    store = open_sqlite(folder, embedder=SMALL.identity, dimensions=SMALL.dimensions)
    return OpenStore(store=store, folder=folder, settings=SETTINGS)


@pytest.fixture
def source(tmp_path):
    """Yield an empty store."""
    with closing(opened(tmp_path / "source")) as source:
        yield source


@pytest.mark.parametrize("chosen", ["all", "two"])
def test_a_restored_group_has_equal_rows_and_accepts_the_same_episodes(source, tmp_path, chosen):
    """Each backup both as the store's file and as a file for each group."""
    ours = lived(source.store, "")
    groups = () if chosen == "all" else ("g", "other")
    assert ours.named() == "g"
    to = tmp_path / "backup"

    report = backup(source, str(to), groups)
    back = restore(SETTINGS, tmp_path / "back", str(to))

    assert (to / FILE).exists() == (chosen == "all")
    assert back == report
    assert report.groups.keys() == {"g", "other"}
    with closing(opened(tmp_path / "back")) as target:
        for group in report.groups:
            assert sum_of(target.store, group).sha256 == report.groups[group].sha256
            assert sum_of(source.store, group).sha256 == report.groups[group].sha256
        theirs = Engine(store=target.store, prefix="", judge=WildJudge())
        for moment in moments(ours):
            assert ours.dump(moment) == theirs.dump(moment)
        for engine in (ours, theirs):
            engine.add(triples(40, works("Firm 1"), client_id="later"))
            engine.ask("retract", episodes=("t4",))
            engine.check()
        assert ours.dump() == theirs.dump()


def test_the_written_lines_of_a_group_parse_to_its_rows(source):
    lived(source.store, "")
    lines: list[bytes] = []
    result = sum_of(source.store, "g")
    rows = list(rows_of(source.store, "g", result.head))

    assert list(result.passing(rows, write=lines.append)) == rows

    assert list(parse_rows(lines[1:])) == rows
    assert any(isinstance(value, bytes) for _, row in rows for value in row)
    assert any(isinstance(value, tuple) for _, row in rows for value in row)


def test_a_full_backup_is_consistent_and_finishes_during_writes(source, tmp_path):
    """25 MB in steps of 10 MB, with writes before each step: the copy does not restart."""
    append(source.store, *(draft("x" * 100_000, client_id=str(n)) for n in range(250)))
    sum_before, steps = sum_of(source.store, "g"), 0
    with closing(opened(source.folder)) as writer:

        def written() -> None:
            nonlocal steps
            steps += 1
            if steps <= 3:
                append(writer.store, draft(f"later {steps}"))

        report = backup(source, str(tmp_path / "backup"), on_row=written)
        assert len(list(writer.store.pending_sequences("g", 0, 999))) == 253

    assert steps > 250
    assert report.groups["g"].sha256 == sum_before.sha256


def test_a_backup_of_groups_is_consistent_during_writes(source, tmp_path):
    engine = Engine(store=source.store, prefix="")
    engine.add(triples(0, works("Acme")), in_group(triples(0, works("Acme")), "h"))
    sums_before = {group: sum_of(source.store, group).sha256 for group in ("g", "h")}
    with closing(opened(source.folder)) as writer:

        def written() -> None:
            accept(writer.store, [in_group(triples(9, works("Later")), "h")], now=times.now())

        report = backup(source, str(tmp_path / "backup"), ["g", "h"], on_row=written)

    assert {group: entry.sha256 for group, entry in report.groups.items()} == sums_before
    assert source.store.heads(["h"])["h"].last > 1


def test_only_a_full_backup_has_access_keys_and_used_sequences(source, tmp_path):
    """Sequences of a removed group are never used again; the store's own group goes with all others."""
    Access(source.store).add(["g"], ["read"])
    with source.store.writing():
        tell(source.store, "Al", "one")
        tell(source.store, "Bo", "one", group="gone")
        remove(source.store, [], group="gone", everything=True)

    report = backup(source, str(tmp_path / "all"))
    items = backup(source, str(tmp_path / "one"), ["g"])
    restore(SETTINGS, tmp_path / "back", str(tmp_path / "all"))

    assert (set(report.groups), set(items.groups)) == ({"g", OWN}, {"g"})
    with closing(opened(tmp_path / "back")) as target:
        assert Access(target.store).every() == Access(source.store).every() != []
        assert append(target.store, draft("again", group="gone")) == append(
            source.store, draft("again", group="gone")
        )


def test_a_full_backup_can_be_restored_into_a_store_with_other_groups(source, tmp_path):
    with source.store.writing():
        for group in ("g", "h"):
            tell(source.store, "Al", "one", group=group)
    backup(source, str(tmp_path / "backup"))
    with closing(opened(tmp_path / "there")) as restored, restored.store.writing():
        tell(restored.store, "Cy", "one", group="mine")

    restore(SETTINGS, tmp_path / "there", str(tmp_path / "backup"), ["h"])
    restore(SETTINGS, tmp_path / "there", str(tmp_path / "backup"))

    with closing(opened(tmp_path / "there")) as restored:
        assert list(restored.store.heads()) == ["g", "h", "mine"]
        assert sum_of(restored.store, "h").sha256 == sum_of(source.store, "h").sha256
    assert not (tmp_path / "there" / "restoring").exists()


def test_restore_ignores_the_wal_of_a_lost_store_file(source, tmp_path):
    """SQLite takes any log beside a file for its own."""
    tell_all = [draft(f"text {n}", client_id=str(n)) for n in range(50)]
    append(source.store, *tell_all)
    report = backup(source, str(tmp_path / "backup"))
    append(source.store, *(draft("z" * 5_000, client_id=f"z{n}") for n in range(200)))
    lost = tmp_path / "lost"
    lost.mkdir()
    for name in (f"{FILE}.made", f"{FILE}-wal"):
        (lost / name).write_bytes((source.folder / name).read_bytes())

    restore(SETTINGS, lost, str(tmp_path / "backup"))

    with closing(opened(lost)) as target:
        assert sum_of(target.store, "g").sha256 == report.groups["g"].sha256
