"""The rows of an earlier attempt that the next attempt of a backfill reads again."""

from __future__ import annotations

import json
import resource
import signal
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from kgray.errors import StoreError
from kgray.io.intake.drafts import Refusal
from kgray.memory.backfill.inputs import InputFile
from kgray.memory.backfill.manifest import Manifest, RunFolder, next_attempt

OPTIONS = {"group": None, "source": None, "kind": None, "at": None, "replace": False, "order": "file"}


def file(name: str, size: int = 10, rows: int = 0) -> InputFile:
    return InputFile(name=name, path=f"/in/{name}", size=size, mtime_ns=1, rows=rows, accepted=rows)


def manifest_before(**options: Any) -> Manifest:
    """Return the manifest of a first attempt that has read some of two files."""
    return Manifest(
        run="r",
        options=OPTIONS | options,
        ordered=7,
        files=[file("a.jsonl", rows=3), file("b.txt", rows=4)],
    )


@pytest.mark.parametrize(
    ("inputs", "earlier", "options", "rows", "ordered"),
    [
        pytest.param([file("a.jsonl"), file("b.txt")], {}, {}, [3, 4], 7, id="nothing-has-changed"),
        pytest.param([file("a.jsonl", 11), file("b.txt")], {}, {}, [0, 4], 7, id="a-file-has-changed"),
        pytest.param(
            [file("b.txt"), file("c.jsonl"), file("a.jsonl")], {}, {}, [4, 0, 3], 7, id="a-file-is-new"
        ),
        pytest.param([file("a.jsonl"), file("b.txt")], {}, {"group": "g"}, [0, 0], 7, id="other-options"),
        pytest.param(
            [file("a.jsonl"), file("b.txt")],
            {"replace": True},
            {"replace": True},
            [3, 0],
            7,
            id="a-text-file-is-replaced-as-a-whole",
        ),
        pytest.param(
            [file("a.jsonl"), file("b.txt")],
            {"order": "reference-time"},
            {"order": "reference-time"},
            [3, 4],
            7,
            id="the-order-of-times-goes-on",
        ),
        pytest.param(
            [file("a.jsonl"), file("b.txt", 11)],
            {"order": "reference-time"},
            {"order": "reference-time"},
            [0, 0],
            0,
            id="one-file-that-has-changed-moves-all-places",
        ),
    ],
)
def test_rows_read_a_second_time(
    inputs: list[InputFile],
    earlier: dict[str, Any],
    options: dict[str, Any],
    rows: list[int],
    ordered: int,
) -> None:
    result = next_attempt("r", inputs, OPTIONS | options, manifest_before(**earlier))

    assert [each.rows for each in result.files] == rows
    assert (result.attempt, result.state, result.ordered) == (2, "running", ordered)


def test_an_attempt_changes_no_input_of_its_request() -> None:
    """The same request may be carried out twice."""
    inputs = [file("a.jsonl")]

    next_attempt("r", inputs, OPTIONS, None).files[0].rows += 1

    assert inputs == [file("a.jsonl")]


def test_a_manifest_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "r")
    with folder.locked():
        assert folder.load() is None
        folder.save(manifest_before())
        assert folder.load() == manifest_before()
        output = json.loads((folder.path / "manifest.json").read_text())
    assert (output["version"], output["rows"], output["files"][0]) == (1, 7, asdict(file("a.jsonl", rows=3)))


def test_earlier_refusals_of_rows_that_are_not_read_again_stay(tmp_path: Path) -> None:
    """A killed attempt may have noted more than its manifest knows, the last line by half."""
    folder = RunFolder(tmp_path, "r")
    bad = Refusal(file="a.jsonl", line=2, field="text", reason="no text")
    with folder.locked():
        folder.keep_refused(manifest_before())
        for row, path in ((1, "/in/a.jsonl"), (3, "/in/a.jsonl"), (0, "/in/gone.jsonl")):
            folder.refuse(bad, path, row)
        folder.save(manifest_before())
    with (folder.path / "refused.jsonl").open("a") as out:
        out.write('{"file": "a.js')
    with folder.locked():
        manifest = manifest_before()
        folder.keep_refused(manifest)

        assert folder.refusals(10) == (bad,)
    assert [each.refused for each in manifest.files] == [1, 0]


def test_refusals_that_could_not_be_written_are_written_once_by_the_next_save(tmp_path):
    """A full disk cuts the append; the rows that it left would be counted twice."""
    folder, read = RunFolder(tmp_path, "r"), file("a.jsonl", rows=9)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    endless = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    with folder.locked():
        manifest = Manifest(run="r", options=OPTIONS, files=[read])
        folder.keep_refused(manifest)
        for row in range(9):
            folder.refuse(
                Refusal(file="a.jsonl", line=row + 1, field="text", reason="x" * 300), read.path, row
            )
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, resource.RLIM_INFINITY))
            with pytest.raises(StoreError):
                folder.save(manifest)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, endless)
            signal.signal(signal.SIGXFSZ, handler)
        folder.save(manifest)

        assert len(folder.refused.read_text().splitlines()) == 9
        assert sum(folder.reasons().values()) == 9
