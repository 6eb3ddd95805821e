"""What a killed engine has left on its node, with real processes, files and locks; vLLM is not needed."""

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

from kgray.backends import belongings
from kgray.backends.belongings import Belongings

# Names itself as vLLM's processes do, and maps a segment.
MAPS = """
import mmap, sys, time
open("/proc/self/comm", "w").write("VLLM::Worker")
with open(sys.argv[1], "wb+") as file:
    file.truncate(8)
    held = mmap.mmap(file.fileno(), 8)
print("mapped", flush=True)
time.sleep(60)
"""
# Starts another program that has not vLLM's name, and has a semaphore.
PARENT = """
import subprocess, sys, time, _multiprocessing
open("/proc/self/comm", "w").write("VLLM::EngineCore")
held = _multiprocessing.SemLock(1, 1, 1, "/" + sys.argv[1].partition("sem.")[2], False)
child = subprocess.Popen(["sleep", "60"])
print(child.pid, flush=True)
time.sleep(60)
"""
SLEEPS = 'import time; print("up", flush=True); time.sleep(60)'
# Starts a child while an engine starts, and waits.
HOLDER = """
import subprocess, sys, time
from pathlib import Path
from kgray.backends import belongings
belongings._RECORDS = Path(sys.argv[1])
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
    monkeypatch.setattr(belongings, "_RECORDS", tmp_path / "records")
    return tmp_path / "records"


@pytest.fixture
def shared() -> Iterator[Callable[[str], Path]]:
    """Give names of shared memory that are free."""
    given: list[Path] = []

    def give(kind: str = "psm_") -> Path:
        given.append(Path(f"/dev/shm/{kind}{uuid4().hex[:8]}"))  # noqa: S108
        return given[-1]

    yield give
    for path in given:
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
    after = Belongings()
    with after.noting():
        pass
    after.end()


def kept(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if len(path.name) == 32]


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def line_of(pid: int) -> str:
    return f"process {pid} {Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[19]}"


def here() -> str:
    return f"in {Path('/proc/self/ns/pid').readlink()}"


def test_what_a_killed_process_left_goes_with_the_next_start_and_nothing_else(records, started, shared):
    """Its engine's processes and their memory; not those of a process that lives, nor what nobody knows."""
    dead, living, stranger = shared(), shared(), shared()
    stranger.write_bytes(bytes(8))
    killed, said = started(HOLDER, records, MAPS, dead)
    orphan = int(said.split()[0])
    child = int(started(HOLDER, records, MAPS, living)[1].split()[0])
    os.kill(child, signal.SIGKILL)  # its segment is mapped by nobody, and its owner lives
    killed.kill()
    killed.wait()
    assert dead.exists()
    assert lives(orphan)

    next_start()

    assert [one.exists() for one in (dead, living, stranger)] == [False, True, True]
    assert not lives(orphan)
    assert len(kept(records)) == 1


def test_a_child_that_is_not_of_vllm_is_never_killed(records, started):
    killed, said = started(HOLDER, records, SLEEPS)
    child = int(said.split()[0])
    killed.kill()
    killed.wait()

    next_start()

    try:
        assert lives(child)
    finally:
        os.kill(child, signal.SIGKILL)


def test_what_a_process_of_vllm_has_started_goes_too_and_its_semaphores(records, started, shared):
    semaphore = shared("sem.loky-1-")
    killed, said = started(HOLDER, records, PARENT, semaphore)
    child, grandchild = map(int, said.split())
    killed.kill()
    killed.wait()
    assert semaphore.exists()
    assert lives(child)
    assert lives(grandchild)

    next_start()

    assert not lives(child)
    assert not lives(grandchild)
    assert not semaphore.exists()


def test_a_number_that_another_process_has_by_now_is_not_killed(records, started, shared):
    ours = shared()
    ours.write_bytes(bytes(8))
    other, _ = started(SLEEPS)
    records.mkdir(0o700)
    told = [here(), f"process {other.pid} 1", f"segment {ours.name} 1", "segment psm"]
    (records / uuid4().hex).write_text("\n".join(told))  # killed within its last line

    next_start()

    assert kept(records) == []
    assert other.poll() is None
    assert ours.exists()  # another one of this name


@pytest.mark.parametrize("made", ["a link", "open to others", "a file"])
def test_a_folder_that_another_user_may_have_made_is_refused(records, tmp_path, made):
    target = tmp_path / "mail"
    target.mkdir(0o700)
    letter = target / uuid4().hex
    letter.write_text(f"{here()}\n")
    if made == "a link":
        records.symlink_to(target)
    elif made == "a file":
        records.touch(0o700)
    else:
        records.mkdir()
        records.chmod(0o755)

    with pytest.raises(PermissionError, match=str(records)), Belongings().noting():
        pass

    assert letter.exists()


def test_what_is_no_record_is_left_alone(records, tmp_path, shared):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    segment = shared()
    segment.write_bytes(bytes(8))
    good = f"{here()}\nsegment {segment.name} {segment.stat().st_ino}\n"
    records.mkdir(0o700)
    elsewhere = tmp_path / uuid4().hex
    elsewhere.write_text(good)
    link = records / uuid4().hex
    link.symlink_to(elsewhere)
    texts = [
        "segment x\n",
        "Dear all,\n",
        f"{here()}\nsegment ../../{victim} {victim.stat().st_ino}\n",
        f"{here()}\nprocess 1\n",
        f"segment {segment.name} {segment.stat().st_ino}\n{here()}\n",
    ]
    for text in texts:
        (records / uuid4().hex).write_text(text)
    (records / uuid4().hex).write_bytes(b"\xff\xfe\n")
    (records / "notes").write_text(good)
    before = {*records.iterdir()}

    next_start()

    assert {*records.iterdir()} - {records / "lock"} == before
    assert elsewhere.exists()
    assert victim.exists()
    assert segment.exists()


def test_a_record_of_another_namespace_stays_and_nothing_of_it_is_touched(records, started, shared):
    segment = shared()
    segment.write_bytes(bytes(8))
    other, _ = started(SLEEPS)
    records.mkdir(0o700)
    told = ["in pid:[1]", line_of(other.pid), f"segment {segment.name} {segment.stat().st_ino}"]
    (records / uuid4().hex).write_text("".join(f"{line}\n" for line in told))

    next_start()

    assert len(kept(records)) == 1
    assert segment.exists()
    assert lives(other.pid)


@pytest.mark.parametrize("fails", [True, False], ids=["its start failed", "it was ended"])
def test_a_process_that_outlives_its_engine_goes_with_the_next_start(records, started, shared, fails):
    segment, held = shared(), Belongings()

    def hangs() -> int:
        with held.noting():
            process, _ = started(MAPS, segment)
            if fails:
                raise RuntimeError(process.pid)
        held.end()
        return process.pid

    if fails:
        with pytest.raises(RuntimeError) as raised:
            hangs()
        pid = raised.value.args[0]
    else:
        pid = hangs()
    assert lives(pid)
    assert segment.exists()
    assert len(kept(records)) == 1

    next_start()

    assert not lives(pid)
    assert not segment.exists()
    assert kept(records) == []


def test_who_starts_while_another_clears_waits_for_it(records, started, shared):
    killed, said = started(HOLDER, records, MAPS, shared())
    orphan = int(said.split()[0])
    killed.kill()
    killed.wait()
    slow = """
import os
kill = os.kill
def late(*arguments):
    print("clears", flush=True)
    time.sleep(1)
    kill(*arguments)
os.kill = late
"""
    _, said = started(HOLDER.replace("held =", f"{slow}\nheld =", 1), records, SLEEPS)
    assert said == "clears\n"
    assert lives(orphan)

    next_start()

    assert not lives(orphan)


def test_a_disk_that_is_full_for_a_while_loses_nothing(records, tmp_path, shared, started):
    """The limit of a file's size stands for the disk: writes fail, the first of them after some bytes."""
    program = """
import resource, subprocess, sys, time
from pathlib import Path
from kgray.backends import belongings
belongings._RECORDS = Path(sys.argv[1])
held = belongings.Belongings()
with held.noting():
    size = held._path.stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 5, resource.RLIM_INFINITY))
    lift = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    command = [sys.executable, "-c", *sys.argv[2:]]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=lift)
    child.stdout.readline()
    time.sleep(0.7)
    full = held._path.stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    time.sleep(0.7)
    print(full - size, child.pid, *held._path.read_text().splitlines(), sep="|", flush=True)
    child.kill()
    child.wait()
held.end()
"""
    segment = shared()
    _, said = started(program, records, MAPS, segment)
    full, pid, *lines = said.strip().split("|")
    assert full == "5"
    assert [line.split()[:2] for line in lines[1:]] == [["process", pid], ["segment", segment.name]]


def test_a_folder_is_made_for_its_owner_alone_and_the_lock_is_free_after_the_start(records):
    held = Belongings()
    with held.noting():
        assert records.stat().st_mode == 0o040700
        with (records / "lock").open("a") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert len(kept(records)) == 1
    held.end()
    assert kept(records) == []
