"""The remains of a killed engine on its node, with real processes, files and locks; vLLM is not needed."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from kgray.models import belongings
from kgray.models.belongings import Belongings, Guard
from tests.waiting import wait_for

# Maps a segment, as vLLM's processes do, and does not end at a signal.
MAPS = """
import mmap, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(sys.argv[1], "wb+") as file:
    file.truncate(8)
    held = mmap.mmap(file.fileno(), 8)
print("mapped", flush=True)
time.sleep(60)
"""
# Has a semaphore.
SEMAPHORE = """
import sys, time, _multiprocessing
held = _multiprocessing.SemLock(1, 1, 1, "/" + sys.argv[1].partition("sem.")[2], False)
print("made", flush=True)
time.sleep(60)
"""
# Starts a child while an engine starts, and waits.
HOLDER = """
import subprocess, sys, time
from pathlib import Path
from kgray.models import belongings
belongings.RECORDS = Path(sys.argv[1])
held = belongings.Belongings()
with held.noting():
    command = [sys.executable, "-c", *sys.argv[2:]]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    said = child.stdout.readline()
print(child.pid, said, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def records(tmp_path, monkeypatch):
    """Return the folder of the records, of this test alone."""
    monkeypatch.setattr(belongings, "RECORDS", tmp_path / "records")
    return tmp_path / "records"


@pytest.fixture
def shared() -> Iterator[Callable[[str], Path]]:
    """Give names of shared memory that are free."""
    paths: list[Path] = []

    def give(kind: str = "psm_") -> Path:
        paths.append(Path(f"/dev/shm/{kind}{uuid4().hex[:8]}"))  # noqa: S108
        return paths[-1]

    yield give
    for path in paths:
        path.unlink(missing_ok=True)


@pytest.fixture
def started() -> Iterator[Callable[..., tuple[subprocess.Popen[str], str]]]:
    """Start Python programs; each with its first line."""
    running: list[subprocess.Popen[str]] = []

    def start(*arguments: object) -> tuple[subprocess.Popen[str], str]:
        command = [sys.executable, "-c", *map(str, arguments)]
        pipe = subprocess.PIPE
        running.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True))
        return running[-1], running[-1].stdout.readline()

    yield start
    for process in running:
        process.kill()
        process.communicate()


def next_start() -> None:
    later_value = Belongings()
    with later_value.noting():
        pass
    later_value.end()


def record_files(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if len(path.name) == 32]


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def this_process() -> str:
    return f"in {Path('/proc/self/ns/pid').readlink()}"


def killed(owner: subprocess.Popen[str], child: int) -> None:
    """Kill a process and its child."""
    os.kill(child, signal.SIGKILL)
    owner.kill()
    owner.wait()
    wait_for(lambda: not lives(child))


def test_the_next_start_removes_only_the_memory_of_a_killed_process(records, started, shared):
    """The memory of its engine's processes; not the memory of a live process, nor unknown memory."""
    dead, living, stranger = shared(), shared(), shared()
    stranger.write_bytes(bytes(8))
    owner, output = started(HOLDER, records, MAPS, dead)
    killed(owner, int(output.split()[0]))
    assert dead.exists()
    child = int(started(HOLDER, records, MAPS, living)[1].split()[0])  # the next start
    assert not dead.exists()
    os.kill(child, signal.SIGKILL)  # its segment is mapped by no process, and its owner lives

    next_start()

    assert [item.exists() for item in (dead, living, stranger)] == [False, True, True]
    assert len(record_files(records)) == 1


def test_the_processes_of_a_killed_owner_end(records, started, shared):
    """A kill for want of memory leaves no time: without an end, they would keep the card's memory."""
    owner, line = started(HOLDER, records, "print('up', flush=True); import time; time.sleep(600)")
    child = int(line.split()[0])
    owner.kill()
    owner.wait()

    wait_for(lambda: not lives(child))


def test_only_a_recorded_process_that_ignores_the_signal_is_killed(started):
    ignore = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    program = f"{ignore}; print(1, flush=True); sys.stdin.read()"
    stubborn, _ = started(program)
    stranger, _ = started(program)
    guard = Guard(grace_s=0.3)
    guard.note([str(stubborn.pid), "999999999"])
    assert lives(stubborn.pid)

    guard.close()

    assert not lives(stubborn.pid)
    assert lives(stranger.pid)


def test_the_next_start_also_removes_semaphores(records, started, shared):
    semaphore = shared("sem.loky-1-")
    owner, output = started(HOLDER, records, SEMAPHORE, semaphore)
    killed(owner, int(output.split()[0]))
    assert semaphore.exists()

    next_start()

    assert not semaphore.exists()


def test_a_mapped_segment_is_removed_only_after_its_process_ends(records, started, shared):
    segment = shared()
    owner, output = started(HOLDER, records, MAPS, segment)
    child = int(output.split()[0])
    owner.kill()
    owner.wait()
    next_start()
    assert lives(child)
    assert segment.exists()
    assert len(record_files(records)) == 1

    os.kill(child, signal.SIGKILL)
    wait_for(lambda: not lives(child))
    next_start()

    assert not segment.exists()
    assert record_files(records) == []


def test_a_new_segment_with_a_recorded_name_is_not_removed(records, shared):
    ours = shared()
    ours.write_bytes(bytes(8))
    records.mkdir(0o700)
    record_lines = [this_process(), f"{ours.name} 1", "psm"]
    (records / uuid4().hex).write_text("\n".join(record_lines))  # killed within its last line

    next_start()

    assert record_files(records) == []
    assert ours.exists()


@pytest.mark.parametrize("kind", ["a link", "open to others", "a file"])
def test_a_folder_that_another_user_may_control_is_refused(records, tmp_path, kind):
    target = tmp_path / "mail"
    target.mkdir(0o700)
    letter = target / uuid4().hex
    letter.write_text(f"{this_process()}\n")
    if kind == "a link":
        records.symlink_to(target)
    elif kind == "a file":
        records.touch(0o700)
    else:
        records.mkdir()
        records.chmod(0o755)

    with pytest.raises(PermissionError, match=str(records)), Belongings().noting():
        pass

    assert letter.exists()


def test_files_that_are_not_records_are_not_removed(records, tmp_path, shared):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    segment = shared()
    segment.write_bytes(bytes(8))
    good = f"{segment.name} {segment.stat().st_ino}\n"
    records.mkdir(0o700)
    for text in (f"Dear all,\n{good}", f"in pid:[1]\n{good}", good):  # the second: of another namespace
        (records / uuid4().hex).write_text(text)
    (records / "notes").write_text(f"{this_process()}\n{good}")
    files_before = {*records.iterdir()}
    (records / uuid4().hex).write_text(f"{this_process()}\n../../{victim} {victim.stat().st_ino}\n")

    next_start()

    assert {*records.iterdir()} - {records / "lock"} == files_before
    assert victim.exists()
    assert segment.exists()


def test_a_temporarily_full_disk_loses_no_records(records, started, shared):
    """The limit of a file's size simulates a full disk: writes fail, the first after some bytes."""
    program = """
import resource, subprocess, sys, time
from pathlib import Path
from kgray.models import belongings
belongings.RECORDS = Path(sys.argv[1])
held = belongings.Belongings()
with held.noting():
    record = Path(held._record.name)
    size = record.stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 5, resource.RLIM_INFINITY))
    lift = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    command = [sys.executable, "-c", *sys.argv[2:]]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=lift)
    child.stdout.readline()
    time.sleep(0.7)
    full = record.stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    time.sleep(0.7)
    print(full - size, *record.read_text().splitlines(), sep="|", flush=True)
    child.kill()
    child.wait()
held.end()
"""
    segment = shared()
    _, output = started(program, records, MAPS, segment)
    full, *lines = output.strip().split("|")
    assert full == "5"
    assert [line.split()[0] for line in lines[1:]] == [segment.name]


def test_the_record_folder_is_private_and_its_lock_is_released(records):
    belongings = Belongings()
    with belongings.noting():
        assert records.stat().st_mode == 0o040700
        with (records / "lock").open("a") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert len(record_files(records)) == 1
    belongings.end()
    assert record_files(records) == []
