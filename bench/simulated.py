"""A cluster of several nodes on one machine, with nodes that can be killed, for proofs of recovery.

The head has room for the sequencers and writers alone, which ask for none; the workers ask for so much that
they run on the other nodes. On request, sequencer and writer each have a separate node.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

from kgray.errors import KgrayError
from kgray.runtime.session import new_token, token_environment, use_token
from kgray.runtime.spec import LimitsProfile, Profile, RayProfile, SequencerProfile, WorkersProfile

_STORE_BYTES = 80 << 20  # of each node; the least that Ray takes is 75 MiB
_READER_CPUS, _EMBEDDER_CPUS = 3.0, 2.0  # no reader fits where one is missing, and no embedder on the head
_START_S = 600.0  # many processes on few processors
_CONTROL = {"role": "control"}
_CONTROLS = 3  # separate actors: sequencer, writer, scheduler
_HEAD: dict[str, Any] = {
    "num_cpus": 1,
    "object_store_memory": _STORE_BYTES,
    "include_dashboard": False,
}
_TEMPORARY, _REDIS = "RAY_TMPDIR", "RAY_REDIS_ADDRESS"


# At the start of each process of the pool: an import that the model needs fails in the named actors.
_BROKEN_START = """
import sys

class Broken:
    def find_spec(self, name, path=None, target=None):
        if name == "kgray.models.openai_api.extractor":
            import ray
            if ray.get_runtime_context().get_actor_name() in {names!r}:
                raise MemoryError("no room on the card")

sys.meta_path.insert(0, Broken())
"""


def broken_environ(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """Return the environment of a pool whose workers with these names cannot load their model."""
    if not names:
        return {}
    (folder / "sitecustomize.py").write_text(_BROKEN_START.replace("{names!r}", repr(set(names))))
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(Path(__file__).parents[1])])}


def _profile(workers: int, shards: int, *, apart: bool, environ: Mapping[str, str]) -> Profile:
    of_their_own: dict[str, Any] = {"cpus": 1.0, "labels": _CONTROL} if apart else {}
    return Profile(
        name="simulated",
        ray=RayProfile(cpus=1, dashboard=False),
        sequencer=SequencerProfile(shards=shards, **of_their_own),
        extraction=WorkersProfile(workers=workers, cpus=_READER_CPUS, env=environ),
        embedding=WorkersProfile(workers=1, cpus=_EMBEDDER_CPUS),
        limits=LimitsProfile(start_deadline_s=_START_S),
    )


class SimulatedCluster:
    """A head and worker nodes; `close` ends them. environ: the variables that a process needs to join it."""

    def __init__(
        self, nodes: int, *, workers: int = 2, missing: int = 0, room: int | None = None,
        broken: Sequence[str] = (), shards: int = 1, apart: bool = False, redis: str | None = None,
    ) -> None:  # fmt: skip
        """Start it; this process shows its token from now on.

        missing: workers without room on any node until a node is added
        room: workers that a node has room for; None: all that are not missing, so that the death of a node
              costs no place
        broken: names of workers that cannot load their model
        apart: the sequencer and the writer of a shard run on separate nodes
        redis: the store of the head's state
        """
        token = new_token()
        self._folder = token.parent
        self._ends = ExitStack()
        self._use_redis(redis)
        use_token(token)
        from ray.cluster_utils import Cluster  # it imports ray, which reads the token's variables

        self.environ: Mapping[str, str] = token_environment(token)
        os.environ.update(self.environ)  # its processes have this process's environment
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Ray notes a cluster's address in a file of the user, as the default address: here in our folder.
        self._temporary_before = os.environ.get(_TEMPORARY)
        os.environ[_TEMPORARY] = str(self._folder)
        (self._folder / "ray").mkdir()
        self.profile = _profile(workers, shards, apart=apart, environ=broken_environ(self._folder, broken))
        readers = workers - missing if room is None else room
        self._room: dict[str, Any] = {
            "num_cpus": int(_READER_CPUS * readers + _EMBEDDER_CPUS),
            "object_store_memory": _STORE_BYTES,
        }
        head: dict[str, Any] = _HEAD | {"temp_dir": str(self._folder)}
        self._cluster = Cluster(initialize_head=True, head_node_args=head, shutdown_at_exit=True)
        self._head: Any = self._cluster.head_node
        self._nodes: list[Any] = []
        try:
            for _ in range(nodes):
                self.add()
            for _ in range(_CONTROLS * apart):
                self.add_control()
        except BaseException:
            self.close()
            raise

    def _use_redis(self, redis: str | None) -> None:
        if redis is not None:
            os.environ[_REDIS] = redis
            self._ends.callback(os.environ.pop, _REDIS, None)

    @property
    def address(self) -> str:
        """The address for joining it."""
        return str(self._cluster.address)

    @property
    def logs(self) -> Path:
        """The folder of the logs of Ray's processes."""
        return Path(self._head.get_logs_dir_path())

    def add(self) -> None:
        """Start one more worker node, and wait until it is alive."""
        self._nodes.append(self._cluster.add_node(**self._room))

    def kill(self, chance: random.Random) -> None:
        """Kill all processes of a worker node, like a power cut."""
        node = self._nodes.pop(chance.randrange(len(self._nodes)))
        self._cluster.remove_node(node, allow_graceful=False)

    def give_notice(self, chance: random.Random, seconds: float) -> None:
        """Announce the end of one worker node, as a spot preemption does; `end_noticed` ends it."""
        # `ray drain-node` uses both.
        from ray._raylet import GcsClient  # type: ignore[attr-defined]
        from ray.core.generated.autoscaler_pb2 import DrainNodeReason  # type: ignore[attr-defined]

        node = self._noticed = self._nodes.pop(chance.randrange(len(self._nodes)))
        deadline_ms = int((time.time() + seconds) * 1000)
        is_accepted, reason = GcsClient(address=self.address).drain_node(
            node.node_id, DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION"), "preempted", deadline_ms
        )
        if not is_accepted:
            raise KgrayError(f"the node is not drained: {reason}")

    def end_noticed(self) -> None:
        """Kill the announced node's processes, and start another node."""
        self._cluster.remove_node(self._noticed, allow_graceful=False)
        self.add()

    def add_control(self) -> None:
        """Start one more node for a sequencer or a writer."""
        self._cluster.add_node(num_cpus=1, object_store_memory=_STORE_BYTES, labels=_CONTROL)

    def kill_under(self, pid: int) -> None:
        """End this process's node, like a power cut."""
        parents = {parent.pid for parent in psutil.Process(pid).parents()}
        (node,) = (
            node
            for node in self._cluster.worker_nodes
            if parents & {raylet.process.pid for raylet in node.all_processes["raylet"]}
        )
        self._cluster.remove_node(node, allow_graceful=False)

    def kill_head(self) -> None:
        """Kill the process that has the state of the cluster."""
        self._head.kill_gcs_server()

    def start_head(self) -> None:
        """Start that process again."""
        self._head.start_gcs_server()

    def close(self) -> None:
        """End every node. Idempotent."""
        self._cluster.shutdown()  # type: ignore[no-untyped-call]
        self._ends.close()
        if self._temporary_before is None:
            os.environ.pop(_TEMPORARY, None)
        else:
            os.environ[_TEMPORARY] = self._temporary_before
        shutil.rmtree(self._folder, ignore_errors=True)
