"""The parts of a bulk run: spans, skipping, progress lines, a job's log."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgray.cli import progress
from kgray.errors import InputError, Unavailable
from kgray.io.intake.drafts import Defaults
from kgray.io.intake.files import read_file
from kgray.io.intake.formats import Position
from kgray.memory.backfill.manifest import run_name
from kgray.memory.backfill.run import Budget, RecentRate, RunProgress
from kgray.ports import GroupCounts
from kgray.ports.ingest import Sequences, Totals, sum_of
from kgray.runtime.job_log import JobLog, followed
from kgray.runtime.jobs import ServerTimes, without_secrets
from kgray.settings import load, public_environ

# ---------------------------------------------------------------------------------- spending


class Ledger:
    """The part of a store that reports spending."""

    def __init__(self):
        self.total = GroupCounts()

    def counts(self, _group=None):
        return {"g": self.total}


@pytest.mark.parametrize("bound", [{"calls": 5}, {"tokens": 500}])
def test_near_the_end_of_a_budget_no_count_of_a_moment_ago_lets_more_in(bound):
    ledger = Ledger()
    budget = Budget(ledger, **bound)
    ledger.total = GroupCounts(committed=1, calls=1, prompt_tokens=100)
    assert budget.room(1000, 0) == 4
    ledger.total = GroupCounts(committed=4, calls=4, prompt_tokens=400)  # at once: the next look is not due

    assert budget.room(1000, 1) == 0
    assert budget.room(1000, 0) == 1


# ------------------------------------------------------------------------------------ spans


@given(st.sets(st.integers(1, 40)), st.integers(0, 41))
def test_sequences_are_a_sorted_set(members, bound):
    result = Sequences(sorted(members))
    assert (list(result), len(result)) == (sorted(members), len(members))
    assert [number in result for number in range(42)] == [number in members for number in range(42)]
    assert result.before(bound) == sum(member < bound for member in members)
    assert result.before(None) == len(members)


def test_sequences_ascend():
    result = Sequences([3, 4, 7])
    with pytest.raises(ValueError, match="sequence 7 comes after 7"):
        result.append(7)


def test_totals_of_two_runs_are_joined():
    first = Totals(committed=2, stalls=1, first_claim=5.0, last_commit=6.0)
    first.seconds["write"] = 1.5
    second_totals = Totals(committed=3, failed=1, requests=4, first_claim=7.0, last_commit=9.0)
    second_totals.seconds["write"] = 0.5
    both = sum_of(sum_of(Totals(), first), second_totals)
    assert (both.committed, both.failed, both.requests, both.stalls) == (5, 1, 4, 1)
    assert (both.first_claim, both.last_commit, both.seconds["write"]) == (5.0, 9.0, 2.0)


# ---------------------------------------------------------------------------------- skipping


def _csv() -> str:
    return "text,group\n" + "".join(f"row {i},g\n" for i in range(7)) + "x,g,too many\n"


def _write(path: Path, kind: str) -> Path:
    rows = [{"text": f"row {i}", "group": "g"} for i in range(7)]
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=3)
    elif kind == "json":
        path.write_text(json.dumps(rows) + "x")
    elif kind == "csv":
        path.write_text(_csv())
    elif kind == "md":
        path.write_bytes(b"\n\n".join(b"%d" % i * 1400 for i in range(10, 80)) + b"\n\n\xff")
    else:
        path.write_text("\n\n".join(map(json.dumps, rows)) + "\nnot JSON\n")
    return path


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "parquet", "md"])
def test_a_reading_goes_on_behind_the_rows_that_were_read(tmp_path, kind):
    """Refused rows count as well; the remaining rows equal those of a reading from the start."""
    path = _write(tmp_path / f"a.{kind}", kind)
    complete_result = list(read_file(path, Defaults(group="g")))
    assert len(complete_result) >= 4
    for skip in range(len(complete_result) + 2):
        position = Position()
        assert position.share() == 0
        assert (
            list(read_file(path, Defaults(group="g"), skip=skip, position=position)) == complete_result[skip:]
        )
        assert position.share() == 1


def test_an_empty_text_file_is_refused_once(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("\n")
    assert len(list(read_file(path, Defaults(group="g")))) == 1
    assert list(read_file(path, Defaults(group="g"), skip=1)) == []


# -------------------------------------------------------------------------------- the name


def test_a_run_is_named_by_its_store_and_its_sorted_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    chosen, data = load(environ={}), Path("data")
    name = run_name(chosen, data, ["b", "a"])
    assert name == run_name(chosen, tmp_path / "data", [str(tmp_path / "a"), "b", "b"])
    assert len(name) == 12
    assert int(name, 16)
    assert name != run_name(chosen, Path("other"), ["b", "a"])
    assert name != run_name(chosen, data, ["b"])
    server = {"KGRAY_STORE_BACKEND": "neo4j", "KGRAY_STORE_URI": "bolt://x"}
    elsewhere = run_name(load(environ=server), Path("other"), ["b", "a"])
    assert elsewhere == run_name(load(environ=server), data, ["b", "a"]), "the server is the store"


def test_names_that_are_no_folders_are_refused():
    from kgray.memory.backfill.manifest import check_name

    assert check_name("2026-11_x.1") == "2026-11_x.1"
    for name in ("", ".", "..", ".x", "a/b", "a b", "x" * 65):
        with pytest.raises(InputError, match="is no run's name"):
            check_name(name)


# --------------------------------------------------------------------------- progress


def test_the_progress_of_a_run_is_one_line():
    standing = RunProgress(accepted=1200, ended=800, failed=2, rate=40.0, total=29_600)
    assert progress.progress_line(standing) == (
        "1200 accepted, 798 committed, 2 failed, 40.0/s, about 12 min left"
    )
    assert progress.progress_line(RunProgress(duplicate=3, refused=1)) == (
        "0 accepted, 3 duplicate, 1 refused, 0 committed, 0 failed"
    )


def test_sorting_is_reported_before_the_first_acceptance():
    assert progress.progress_line(RunProgress(sorting=7)) == (
        "7 rows read to be sorted, 0 accepted, 0 committed, 0 failed"
    )


def test_a_line_is_printed_every_few_seconds_without_a_terminal(capsys, monkeypatch):
    ticker = progress.Progress()
    monkeypatch.setattr(progress, "LINE_S", 0)
    ticker(RunProgress(accepted=1))
    monkeypatch.setattr(progress, "LINE_S", 60)
    ticker(RunProgress(accepted=2))
    assert capsys.readouterr().err == "kgray: 1 accepted, 0 committed, 0 failed\n"


# ------------------------------------------------------------------------------------- jobs


@given(st.lists(st.lists(st.integers(0, 60), max_size=4), max_size=3))
def test_a_log_that_is_read_again_from_its_beginning_tells_each_line_once(connections):
    """Each connection sends it from the beginning, in pieces that are cut anywhere, and may break."""
    text = 'kgray: 3 accepted\n{"broken\n{"groups": {}}\nRay says more\nlast'
    lines: list[str] = []
    log = JobLog(lines.append)

    async def sent(cuts):
        for start, end in pairwise([0, *sorted(cuts)]):
            yield text[start:end]

    for cuts in [*connections, [len(text)]]:
        asyncio.run(log.read(sent(cuts)))
    log.end()
    assert lines == ["kgray: 3 accepted", '{"broken', "Ray says more", "last"]
    assert log.document == {"groups": {}}


def test_the_environment_of_a_job_has_no_secret_and_no_relative_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    environ = {
        "KGRAY_MODEL_NAME": "m", "KGRAY_MODEL_API_KEY": "hidden", "KGRAY_STORE_PASSWORD": "hidden",
        "KGRAY_EMBEDDER_API_KEY": "hidden", "KGRAY_MODEL_API_KEY_FILE": "key.txt", "KGRAY_DATA": "d",
        "KGRAY_ONTOLOGY_RELATIONS_OWES_CARDINALITY": "many", "KGRAY_MODEL_SCRIPT": "", "PATH": "/bin",
    }  # fmt: skip
    assert public_environ(environ) == {
        "KGRAY_MODEL_NAME": "m",
        "KGRAY_MODEL_API_KEY_FILE": str(tmp_path / "key.txt"),
        "KGRAY_ONTOLOGY_RELATIONS_OWES_CARDINALITY": "many",
    }


def test_a_server_is_named_without_its_credentials():
    assert without_secrets("http://user:hidden@127.0.0.1:8265/x?token=hidden") == "http://127.0.0.1:8265"


class Jobs:
    """A client whose job runs; it writes a piece of its log, and the connection to the log breaks."""

    def __init__(self, looks, status="RUNNING", code=None):
        self.looks, self.status, self.code = looks, status, code
        self.details = pytest.importorskip("ray.job_submission").JobDetails  # now: it takes seconds

    def get_job_info(self, job):
        self.looks -= 1
        if self.looks < 0 and self.status == "RUNNING":
            raise ConnectionError(job)
        status = "RUNNING" if self.looks > 0 else self.status
        return self.details(
            type="SUBMISSION",
            submission_id=job,
            status=status,
            entrypoint="kgray",
            driver_exit_code=self.code,
        )

    async def tail_job_logs(self, job):
        yield f"of {job}\nand"
        if self.looks > 0:
            raise RuntimeError("WebSocket connection closed unexpectedly")
        yield " more\n"


QUICK = ServerTimes(away_s=1.0, pause_s=0.01)


def test_a_job_server_that_stays_away_ends_the_following_in_one_line():
    lines: list[str] = []
    with pytest.raises(Unavailable, match=r"^the Ray job server went away \(ConnectionError\) while j"):
        asyncio.run(followed(Jobs(2), "j", lines.append, lambda: False, QUICK))
    assert lines[0] == "of j"


@pytest.mark.parametrize(
    ("status", "code", "followers"),
    [
        ("SUCCEEDED", 0, 0),
        ("FAILED", 2, 2),
        ("FAILED", None, 1),
        ("FAILED", -9, 75),
        ("FAILED", 137, 75),
        ("STOPPED", None, 75),
    ],
)
def test_a_follower_of_a_job_gets_its_complete_log_and_its_exit_code(status, code, followers):
    """Also where the connection to the log broke: it is read on, and no line comes twice."""
    lines: list[str] = []
    ended = asyncio.run(followed(Jobs(4, status, code), "j", lines.append, lambda: False, QUICK))
    assert (ended.status, ended.code, lines) == (status, followers, ["of j", "and more"])


def test_an_interrupted_follower_leaves_the_job_alone():
    jobs, looks = Jobs(1_000_000), iter([False, False, True])
    assert asyncio.run(followed(jobs, "j", lambda _: None, lambda: next(looks, True), QUICK)) is None
    assert jobs.looks > 0


def test_the_remaining_time_is_estimated_after_the_first_measurement():
    """The first episode takes long, because models are being started: it is no measure of the rest."""
    rate = RecentRate()
    rates = [rate.at(float(second), ended) for second, ended in enumerate([0, 0, 0, 0, 1, 4, 7, 9, 29])]

    assert rates == [0.0] * 7 + [9 / 4, 29 / 5]
    assert RunProgress(ended=30, rate=rate.at(9.0, 30), total=60).left_s == 6.0
    assert RunProgress(ended=1, rate=0.0, total=8_071).left_s is None


def test_a_slow_rate_is_measured_over_as_long_as_it_needs():
    rate = RecentRate()
    assert [round(rate.at(second * 10.0, second), 2) for second in range(20)][7:10] == [0.0, 0.1, 0.1]
