"""A cluster of several nodes on one machine, whose nodes can be killed: what proofs of recovery need.

The head has room for the sequencers and writers alone, which ask for none; the workers ask for so much that
they run on the other nodes.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from kgray.runtime.head import new_folder, new_token, token_environment
from kgray.runtime.profile import Profile, RayProfile, WorkersProfile
from kgray.runtime.session import use_token

_STORE_BYTES = 80 << 20  # of each node; the least that Ray takes is 75 MiB
_WORKER_CPUS = 2.0
_TEMPORARY, _REDIS = "RAY_TMPDIR", "RAY_REDIS_ADDRESS"


def _profile(workers: int) -> Profile:
    return Profile(
        name="simulated",
        ray=RayProfile(cpus=1, dashboard=False),
        extraction=WorkersProfile(workers=workers, cpus=_WORKER_CPUS),
        embedding=WorkersProfile(workers=1, cpus=_WORKER_CPUS),
    )


class SimulatedCluster:
    """A head and worker nodes; `close` ends them. environ: what a process needs to join it."""

    def __init__(self, nodes: int, *, workers: int = 2, redis: str | None = None) -> None:
        """Start it; this process shows its token from now on.

        redis: where the head keeps what it knows
        """
        self._folder = new_folder()
        self._ends = ExitStack()
        if redis is not None:
            os.environ[_REDIS] = redis
            self._ends.callback(os.environ.pop, _REDIS, None)
        token = new_token(self._folder)
        use_token(token)
        from ray.cluster_utils import Cluster  # it imports ray, which reads the token's variables

        self.environ: Mapping[str, str] = token_environment(token)
        os.environ.update(self.environ)  # its processes have this process's environment
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Ray notes a cluster's address in a file of the user's, for those that name none: here in our folder.
        self._before = os.environ.get(_TEMPORARY)
        os.environ[_TEMPORARY] = str(self._folder)
        (self._folder / "ray").mkdir()
        self.profile = _profile(workers)
        # All workers fit on one node, so that the others' death takes nobody's place away.
        self._room: dict[str, Any] = {
            "num_cpus": int(_WORKER_CPUS * (workers + 1)),
            "object_store_memory": _STORE_BYTES,
        }
        head: dict[str, Any] = {
            "num_cpus": 1,
            "object_store_memory": _STORE_BYTES,
            "include_dashboard": False,
            "temp_dir": str(self._folder),
        }
        self._cluster = Cluster(initialize_head=True, head_node_args=head, shutdown_at_exit=True)
        self._head: Any = self._cluster.head_node
        self._nodes: list[Any] = []
        try:
            for _ in range(nodes):
                self.add()
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        """Where to join it."""
        return str(self._cluster.address)

    def add(self) -> None:
        """Start one more worker node, and wait until it is alive."""
        self._nodes.append(self._cluster.add_node(**self._room))

    def kill(self, chance: random.Random) -> None:
        """End all processes of one worker node at once, as a power cut does."""
        node = self._nodes.pop(chance.randrange(len(self._nodes)))
        self._cluster.remove_node(node, allow_graceful=False)

    def kill_head(self) -> None:
        """End the process that keeps what is known of the cluster."""
        self._head.kill_gcs_server()

    def start_head(self) -> None:
        """Start that process again."""
        self._head.start_gcs_server()

    def close(self) -> None:
        """End every node. Idempotent."""
        self._cluster.shutdown()  # type: ignore[no-untyped-call]
        self._ends.close()
        if self._before is None:
            os.environ.pop(_TEMPORARY, None)
        else:
            os.environ[_TEMPORARY] = self._before
        shutil.rmtree(self._folder, ignore_errors=True)
