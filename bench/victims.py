"""What a proof of recovery kills, and how it sees that it is back. Processes are found by what they tell."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from bench import processes
from bench.places import Neo4jServer
from bench.serving import Server
from kgray.errors import Unavailable

if TYPE_CHECKING:
    from bench.simulated import SimulatedCluster
    from kgray.runtime.deploy import Deployment

_ANSWER_S = 0.5
RUN = "chaos"  # the backfill's name: its manifest lies under it
STOPPED = 75  # the exit code of a driver that goes on when it is started again


class Victim(Protocol):
    """One thing that is killed."""

    def kill(self, chance: random.Random) -> bool:
        """End it at once; False where it is not there now, because it comes back from an earlier kill."""
        ...

    def back(self) -> bool:
        """Whether another stands in its place; what does not come by itself is started."""
        ...


class Actors:
    """The actors of a deployment, asked with little patience: they are killed all the time."""

    def __init__(self, deployment: Deployment) -> None:
        """Keep the handles: they stay good through restarts."""
        self._handles = dict(deployment.all())

    def names(self, kind: str) -> list[str]:
        """Return the names of a kind: sequencer, writer, models, embedder."""
        return [name for name in self._handles if name.startswith(f"{kind}-")]

    def told(self, name: str) -> dict[str, Any] | None:
        """Return an actor's stats; None while it does not answer."""
        from kgray.runtime.deploy import answer

        try:
            found: dict[str, Any] = answer(self._handles[name].stats.remote(), _ANSWER_S)
        except Unavailable:
            return None
        return found


class ActorVictim:
    """One of the actors of some kinds; Ray starts it anew."""

    def __init__(self, actors: Actors, *kinds: str) -> None:
        """Choose among all actors of these kinds."""
        self._actors, self._kinds = actors, kinds
        self._killed: dict[str, int] = {}

    def kill(self, chance: random.Random) -> bool:
        """End the process of one of them."""
        names = [name for kind in self._kinds for name in self._actors.names(kind)]
        chance.shuffle(names)
        for name in names:
            told = self._actors.told(name)
            if told is not None and told["pid"] != self._killed.get(name):
                processes.kill(told["pid"])
                self._killed[name] = told["pid"]
                return True
        return False

    def back(self) -> bool:
        """Whether those that were killed answer from other processes."""
        return all(
            (told := self._actors.told(name)) is not None and told["pid"] != pid
            for name, pid in self._killed.items()
        )


@dataclass(slots=True)
class Away:
    """When a server that was killed is due again: shared by those that kill it."""

    until: float = 0.0


class ServerVictim:
    """The model server; it is started again after a while."""

    def __init__(self, server: Server, down_s: float, away: Away) -> None:
        """Have nobody listen for down_s."""
        self._server, self._down_s, self._away = server, down_s, away

    def kill(self, chance: random.Random) -> bool:  # noqa: ARG002 - there is one
        """End it."""
        if not self._server.pid:
            return False
        self._server.kill()
        self._away.until = time.monotonic() + self._down_s
        return True

    def back(self) -> bool:
        """Start it when its time has come."""
        if not self._server.pid and time.monotonic() >= self._away.until:
            self._server.start()
        return bool(self._server.pid)


class Driver:
    """`kgray backfill` as a process of its own: a victim, and what ends when all is done."""

    def __init__(self, paths: Sequence[Path], data: Path, environ: Mapping[str, str]) -> None:
        """environ: KGRAY_ variables; no others of this process's are handed on."""
        clean = {name: text for name, text in os.environ.items() if not name.startswith("KGRAY_")}
        self._environ = {**clean, **environ}
        self._command = [sys.executable, "-P", "-m", "kgray", "backfill", *map(str, paths)]
        self._command += ["--run", RUN, "--json", "--data", str(data)]
        self._data = data
        self._process: subprocess.Popen[bytes] | None = None
        self._attempt = 0
        self.exits: list[int] = []  # codes of those that ended by themselves
        self.said = ""  # the last lines of the last one

    @property
    def pid(self) -> int:
        """The process's id; 0 while there is none."""
        return self._process.pid if self._process is not None else 0

    def start(self) -> None:
        """Start it, or start it again with the same arguments."""
        log = self._data.parent / "driver.log"
        with log.open("ab") as said:
            self._process = subprocess.Popen(  # noqa: S603 - our own
                self._command, stdout=said, stderr=said, env=self._environ
            )

    def look(self) -> int | None:
        """Return the exit code of one that has ended by itself; None while it runs."""
        if self._process is None or (code := self._process.poll()) is None:
            return None
        self._process = None
        self.exits.append(code)
        self.said = (self._data.parent / "driver.log").read_text(errors="replace")[-600:]
        return code

    def kill(self, chance: random.Random) -> bool:  # noqa: ARG002 - there is one
        """End it, once it has come as far as to write its manifest."""
        attempt = self._attempts()
        if self._process is None or attempt <= self._attempt:
            return False
        self._attempt = attempt
        self._process.kill()
        self._process.wait()
        self._process = None
        return True

    def back(self) -> bool:
        """Start it again; whether the new one has begun."""
        if self._process is None:
            self.start()
        return self._attempts() > self._attempt

    def stop(self) -> None:
        """End it in order. Idempotent."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def _attempts(self) -> int:
        try:
            found = json.loads((self._data / "runs" / RUN / "manifest.json").read_bytes())
        except (OSError, ValueError):
            return 0
        return int(found["attempt"])


class NodeVictim:
    """A worker node of a simulated cluster; another one is started."""

    def __init__(self, cluster: SimulatedCluster, actors: Actors) -> None:
        """Kill among the worker nodes: the data lie on the head."""
        self._cluster, self._actors = cluster, actors
        self._missing = 0

    def kill(self, chance: random.Random) -> bool:
        """End all processes of one node."""
        if self._missing:
            return False
        self._cluster.kill(chance)
        self._missing = 1
        return True

    def back(self) -> bool:
        """Start another node; whether every worker answers again."""
        if self._missing:
            self._cluster.add()
            self._missing = 0
        names = [name for kind in ("models", "embedder") for name in self._actors.names(kind)]
        return all(self._actors.told(name) is not None for name in names)


class StoreVictim:
    """The Neo4j server; it is started again at once."""

    def __init__(self, server: Neo4jServer) -> None:
        """One of ours."""
        self._server = server
        self._down = False

    def kill(self, chance: random.Random) -> bool:  # noqa: ARG002 - there is one
        """End it as a power cut does."""
        if self._down:
            return False
        self._server.kill()
        self._down = True
        return True

    def back(self) -> bool:
        """Start it again."""
        if self._down:
            self._server.start()
            self._down = False
        return True
