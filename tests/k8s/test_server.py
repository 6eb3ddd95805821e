"""The manifests on a real API server, with the real scheduler and controllers: `make test-k8s`.

The server is built from Go modules once (10 CPU minutes) into the folder that KGRAY_TEST_K8S_CACHE names.
No container runs: a pod on a node is said to be ready.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

HERE = Path(__file__).parent
K8S = HERE.parents[1] / "k8s"
OVERLAYS = {"base": K8S / "base", **{path.name: path for path in sorted((K8S / "overlays").iterdir())}}
UNKNOWN = "PodMonitor"  # of the Prometheus operator, which this server does not know
PLACED_S = 60
NEEDS = {
    "KGRAY_TEST_RAY_CRDS is not set: the folder of KubeRay's definitions": "KGRAY_TEST_RAY_CRDS"
    in os.environ,
    "not installed: go, which compiles the server": shutil.which("go") is not None,
}
MISSING = next((reason for reason, there in NEEDS.items() if not there), "")
pytestmark = [pytest.mark.k8s, pytest.mark.skipif(bool(MISSING), reason=MISSING)]

# what is spoilt, as it stands in a rendered overlay, what is written instead, what the server says
SPOILT = [
    ("minReplicas: 1", "minReplica: 1", 'unknown field "spec.workerGroupSpecs[0].minReplica"'),
    ("version: v2", "version: v3", "Unsupported value"),
    ("maxReplicas: 2", "maxReplicas: two", "must be of type integer"),
    ("schedule: 0 3 * * *", "schedule: 0 25 * * *", "spec.schedule: Invalid value"),
    ("restartPolicy: Never", "restartPolicy: Always", "restartPolicy"),
    ("port: 8265", "port: 82650", "must be between 1 and 65535"),
    ("maxUnavailable: 0", "maxUnavailable: some", "maxUnavailable"),
    ("storage: 200Gi", "storage: 200GiB", "quantities must match"),
]


@dataclass(frozen=True)
class Server:
    """A control plane that runs, with its data in a folder."""

    folder: Path

    def __call__(self, *args: str, feed: str | None = None) -> subprocess.CompletedProcess[str]:
        command = [str(HERE / "server"), "kubectl", str(self.folder), *args]
        return subprocess.run(command, input=feed, capture_output=True, text=True, check=False, timeout=120)

    def rendered(self, overlay: Path) -> str:
        done = self("kustomize", str(overlay))
        assert done.returncode == 0, done.stderr
        documents = done.stdout.split("\n---\n")
        return "\n---\n".join(one for one in documents if f"kind: {UNKNOWN}" not in one)

    def apply(self, text: str, *more: str) -> subprocess.CompletedProcess[str]:
        return self("apply", "--validate=strict", *more, "-f", "-", feed=text)

    def get(self, *args: str) -> Any:
        done = self("get", *args, "-o", "json")
        return json.loads(done.stdout) if done.returncode == 0 else {"items": []}

    def placed(self, name: str) -> str:
        """Return the node of a pod; fails where it has none in time."""
        pod = until(
            lambda: found if (found := self.get("pod", name, "-n", "kgray"))["spec"].get("nodeName") else None
        )
        assert pod, self.get("pod", name, "-n", "kgray")["status"]
        return str(pod["spec"]["nodeName"])


def until(test: Callable[[], Any]) -> Any:
    """Return the first true answer, or the last one when the time is up."""
    end = time.monotonic() + PLACED_S
    while not (answer := test()) and time.monotonic() < end:
        time.sleep(0.5)
    return answer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield a server with the base applied; it is ended and its data deleted."""
    folder = tmp_path_factory.mktemp("k8s")
    subprocess.run([str(HERE / "server"), "start", str(folder)], check=True)
    try:
        found = Server(folder)
        done = found.apply(found.rendered(OVERLAYS["base"]))
        assert done.returncode == 0, done.stderr
        until(lambda: found.get("serviceaccount", "default", "-n", "kgray").get("metadata"))
        yield found
    finally:
        subprocess.run([str(HERE / "server"), "wipe", str(folder)], check=True)


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_server_takes_every_overlay_strictly(server, name):
    done = server.apply(server.rendered(OVERLAYS[name]), "--dry-run=server")
    assert done.returncode == 0, done.stderr


def test_the_server_takes_every_job(server):
    for path in sorted((K8S / "jobs").glob("*.yaml")):
        done = server("create", "--validate=strict", "--dry-run=server", "-f", str(path))
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("right", "wrong", "said"), SPOILT, ids=[one[1] for one in SPOILT])
def test_a_mistake_is_refused(server, right, wrong, said):
    text = server.rendered(OVERLAYS["base"])
    assert right in text
    done = server.apply(text.replace(right, wrong, 1), "--dry-run=server")
    assert done.returncode != 0
    assert said in done.stderr


def test_every_pod_template_of_the_cluster_is_placed_where_it_belongs(server):
    cluster = server.get("raycluster", "kgray", "-n", "kgray")["spec"]
    groups = {"head": cluster["headGroupSpec"], **{g["groupName"]: g for g in cluster["workerGroupSpecs"]}}
    placed = {}
    for name, group in groups.items():
        pod = {"apiVersion": "v1", "kind": "Pod", "spec": group["template"]["spec"]}
        pod |= {"metadata": {"name": f"try-{name}", "namespace": "kgray"}}
        done = server.apply(json.dumps(pod))
        assert done.returncode == 0, (name, done.stderr)
        placed[name] = server.placed(f"try-{name}")
    assert placed == {"head": "cpu-1", "control": "cpu-1", "cpu": "cpu-1", "llm": "gpu-1", "embed": "gpu-1"}


def test_the_store_gets_its_volume_and_the_door_its_replicas(server):
    for kind in ("statefulset/neo4j", "deployment/kgray-door"):
        done = server("rollout", "status", kind, "-n", "kgray", f"--timeout={PLACED_S}s")
        assert done.returncode == 0, done.stdout + done.stderr
    claims = server.get("persistentvolumeclaims", "-n", "kgray")["items"]
    assert {claim["status"]["phase"] for claim in claims} == {"Bound"}


def test_redis_gets_its_volume(server):
    done = server.apply(server.rendered(OVERLAYS["redis"]))
    assert done.returncode == 0, done.stderr
    done = server("rollout", "status", "statefulset/redis", "-n", "kgray", f"--timeout={PLACED_S}s")
    assert done.returncode == 0, done.stdout + done.stderr
    claim = server.get("persistentvolumeclaim", "data-redis-0", "-n", "kgray")
    assert claim["status"]["phase"] == "Bound"


def test_the_small_overlay_fits_on_one_machine_of_16_cores(server):
    cores = memory = 0.0
    for document in yaml.safe_load_all(server.rendered(OVERLAYS["small"])):
        for number, containers in pods_of(document):
            requests = [one["resources"]["requests"] for one in containers]
            cores += number * sum(cpus(one["cpu"]) for one in requests)
            memory += number * sum(gigabytes(one["memory"]) for one in requests)
    assert 8 < cores <= 16
    assert 16 < memory <= 64


def pods_of(document: dict[str, Any]) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Yield how many pods stand from the start, and the containers of each."""
    spec = document.get("spec", {})
    if document["kind"] in ("Deployment", "StatefulSet"):
        yield spec["replicas"], spec["template"]["spec"]["containers"]
    elif document["kind"] == "RayCluster":
        scaler = {"resources": spec["autoscalerOptions"]["resources"]}
        yield 1, [*spec["headGroupSpec"]["template"]["spec"]["containers"], scaler]
        for group in spec["workerGroupSpecs"]:
            yield group["replicas"], group["template"]["spec"]["containers"]


def cpus(quantity: str) -> float:
    return float(quantity[:-1]) / 1000 if quantity.endswith("m") else float(quantity)


def gigabytes(quantity: str) -> float:
    return float(quantity[:-2]) / (1024 if quantity.endswith("Mi") else 1)


def test_neo4j_elsewhere_leaves_out_ours_and_nothing_else(server):
    kinds = [
        {
            (one["kind"], one["metadata"]["name"])
            for one in yaml.safe_load_all(server.rendered(OVERLAYS[name]))
        }
        for name in ("base", "neo4j-elsewhere")
    ]
    assert kinds[0] - kinds[1] == {("Service", "neo4j"), ("StatefulSet", "neo4j")}
    assert kinds[1] - kinds[0] == set()


def test_the_refresh_makes_its_job(server):
    assert server("create", "job", "tonight", "--from=cronjob/kgray-refresh", "-n", "kgray").returncode == 0
    pods = until(lambda: server.get("pod", "-n", "kgray", "-l", "job-name=tonight")["items"])
    assert server.placed(pods[0]["metadata"]["name"]) == "cpu-1"
