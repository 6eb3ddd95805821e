"""The targets of a proof of recovery, and the checks of their replacements."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from bench.processes import ChildProcess, kill
from kgray.errors import STOPPED, KgrayError, Unavailable

if TYPE_CHECKING:
    from kgray.runtime.deploy import Deployment

_ANSWER_S = 0.5
_RUN = "chaos"  # the backfill's name: its manifest lies under it


class Target(Protocol):
    """One thing that is killed."""

    def kill(self, chance: random.Random) -> bool:
        """Kill it; return False if it has not come back from an earlier kill."""
        ...

    def back(self) -> bool:
        """Tell whether the target is replaced; start it if it does not return by itself."""
        ...


class Actors:
    """The actors of a deployment, asked with little patience: they are killed all the time."""

    def __init__(self, deployment: Deployment) -> None:
        """Keep the handles: they stay good through restarts."""
        self._namespace, self._handles = deployment.spec.namespace, dict(deployment.actors)

    def refresh(self) -> None:
        """Look all actors up again: a change of the deployment replaces them."""
        from kgray.runtime.deploy import find

        deployment = find(self._namespace)
        self._handles = {} if deployment is None else dict(deployment.actors)

    def names(self, *kinds: str) -> list[str]:
        """Return the names of some kinds: sequencer, writer, models, embedder."""
        return [name for kind in kinds for name in self._handles if name.startswith(f"{kind}-")]

    def all_answer(self, *kinds: str) -> bool:
        """Tell whether every actor of these kinds answers."""
        return all(self.stats(name) is not None for name in self.names(*kinds))

    def stats(self, name: str) -> dict[str, Any] | None:
        """Return an actor's statistics; None while it does not answer."""
        from kgray.runtime.actors import answer

        try:
            stats: dict[str, Any] = answer(self._handles[name].stats.remote(), _ANSWER_S)
        except Unavailable:
            return None
        return stats


class ActorTarget:
    """An actor of some kinds; Ray restarts it."""

    def __init__(self, actors: Actors, *kinds: str) -> None:
        """Choose among all actors of these kinds."""
        self._actors, self._kinds = actors, kinds
        self._killed: dict[str, int] = {}  # the process that was killed last, by actor

    def kill(self, chance: random.Random) -> bool:
        """End the process of one actor."""
        names = self._actors.names(*self._kinds)
        chance.shuffle(names)
        for name in names:
            stats = self._actors.stats(name)
            if stats is not None and stats["pid"] != self._killed.get(name):
                kill(stats["pid"])
                self._killed[name] = stats["pid"]
                return True
        return False

    def back(self) -> bool:
        """Tell whether the killed actors answer from other processes."""
        return all(
            (stats := self._actors.stats(name)) is not None and stats["pid"] != pid
            for name, pid in self._killed.items()
            if name in self._actors.names(*self._kinds)  # else a change of the deployment has ended it
        )


class RestartedTarget:
    """Something that the bench itself starts again, some seconds after it was killed."""

    def __init__(
        self,
        end: Callable[[random.Random], None],
        start: Callable[[], None],
        *,
        down_s: float = 0.0,
        answers: Callable[[], bool] = lambda: True,
    ) -> None:
        """answers: whether all is well again once it was started."""
        self._end, self._start, self._answers = end, start, answers
        self._down_s = down_s
        self._due: float | None = None  # when it is started again, by time.monotonic; None = it runs

    def kill(self, chance: random.Random, down_s: float | None = None) -> bool:
        """End it for a number of seconds; None = the default."""
        if self._due is not None:
            return False
        self._end(chance)
        self._due = time.monotonic() + (self._down_s if down_s is None else down_s)
        return True

    def back(self) -> bool:
        """Start it when its time has come."""
        if self._due is not None:
            if time.monotonic() < self._due:
                return False
            self._start()
            self._due = None
        return self._answers()


class OutageTarget:
    """Another target that stays away for longer; its other kills wait."""

    def __init__(self, target: RestartedTarget, outage_s: float) -> None:
        """Share the target."""
        self._target, self._outage_s = target, outage_s

    def kill(self, chance: random.Random) -> bool:
        """End it."""
        return self._target.kill(chance, self._outage_s)

    def back(self) -> bool:
        """Start it when its time has come."""
        return self._target.back()


class CommandTarget:
    """A command that changes the running deployment: `kgray scale`, or `kgray up` with other settings.

    midway   whether the command has begun its work; if given, the command is killed then, and run again
    """

    def __init__(
        self,
        commands: Iterator[ChildProcess],
        log: Path,
        end: Callable[[], None],
        midway: Callable[[], bool] | None = None,
    ) -> None:
        """commands: the next command of each change; end: called when a change is complete."""
        self.siblings: Sequence[CommandTarget] = ()  # a change waits until their commands have ended
        self._commands, self._log, self._end, self._midway = commands, log, end, midway
        self._command: ChildProcess | None = None
        self._cut_at: float | None = None  # when the command is killed, by time.monotonic
        self._delay_s, self._is_due = 0.0, False
        self.cuts = 0  # commands that were killed

    def kill(self, chance: random.Random) -> bool:
        """Start the next command."""
        if any(target.is_running for target in (self, *self.siblings)):
            return False
        self._command, self._cut_at, self._delay_s = next(self._commands), None, chance.uniform(0.0, 1.0)
        self._is_due = self._midway is not None
        self._command.start()
        return True

    def back(self) -> bool:
        """Tell whether the command has ended; run a stopped command again. Raises KgrayError if it fails."""
        if (command := self._command) is None:
            return True
        if self._is_due and self._midway is not None:
            if self._cut_at is None and self._midway():
                self._cut_at = time.monotonic() + self._delay_s
            if self._cut_at is not None and time.monotonic() >= self._cut_at and command.running():
                command.kill()
                self.cuts, self._is_due = self.cuts + 1, False
                command.start()
        code = command.ended()
        if code == STOPPED:
            command.start()
        elif code is not None:
            if code:
                raise KgrayError(f"a change of the deployment ended with {code}: {self._last_lines()}")
            self._command = None
            self._end()
        return self._command is None

    @property
    def is_running(self) -> bool:
        """Tell whether its change is not complete."""
        return self._command is not None

    def _last_lines(self) -> str:
        return self._log.read_text(errors="replace")[-600:]


class Driver(ChildProcess):
    """`kgray backfill` as a process; a restarted process continues its run."""

    def __init__(self, paths: Sequence[Path], data: Path, environ: Mapping[str, str]) -> None:
        """environ: all its variables."""
        words = ["backfill", *map(str, paths), "--run", _RUN, "--json", "--data", str(data)]
        self._log_file = data.parent / "driver.log"
        super().__init__("kgray", words, environ=environ, log=self._log_file)
        self._manifest = data / "runs" / _RUN / "manifest.json"
        self.exits: list[int] = []  # exit codes of drivers that ended by themselves

    def ended(self) -> int | None:
        """Return the exit code of a driver that has ended by itself; None while it runs."""
        code = super().ended()
        if code is not None:
            self.exits.append(code)
        return code

    def last_lines(self) -> str:
        """Return the last lines of its output."""
        return self._log_file.read_text(errors="replace")[-300:]

    def attempts(self) -> int:
        """Return how often the run was begun, as its manifest tells."""
        try:
            return int(json.loads(self._manifest.read_bytes())["attempt"])
        except (OSError, ValueError):
            return 0


class DriverTarget:
    """The command that backfills; it is started again."""

    def __init__(self, driver: Driver) -> None:
        """Share the driver with the code that starts and ends it."""
        self._driver = driver
        self._killed = 0  # the attempt that was killed last

    def kill(self, chance: random.Random) -> bool:  # noqa: ARG002 - there is one
        """End it, once it has come as far as to write its manifest."""
        attempt = self._driver.attempts()
        if not self._driver.pid or attempt <= self._killed:
            return False
        self._killed = attempt
        self._driver.kill()
        return True

    def back(self) -> bool:
        """Start it again; return whether the new process has begun."""
        if not self._driver.pid:
            self._driver.start()
        return self._driver.attempts() > self._killed
