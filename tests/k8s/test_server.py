"""The manifests on a real API server, with the real scheduler and controllers and KubeRay's real operator.

`make test-k8s`. Both programs are built from Go modules once (25 CPU minutes) into the folder that
KGRAY_TEST_K8S_CACHE names. No container runs: a pod on a node is reported as ready.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.manifests import CHOICES, K8S, rendered

FOLDER = Path(__file__).parent
UNKNOWN = {"PodMonitor", "PrometheusRule"}  # of the Prometheus operator, which this server does not know
PLACED_S = 90
OURS = "raycluster,rayjob,deployment,statefulset,service,cronjob,job,poddisruptionbudget,ingress"
NEEDS = {
    "KGRAY_TEST_RAY_CRDS is not set: the folder of KubeRay's definitions": "KGRAY_TEST_RAY_CRDS"
    in os.environ,
    "not installed: go, which compiles the server": shutil.which("go") is not None,
}
MISSING = next((reason for reason, is_present in NEEDS.items() if not is_present), "")
pytestmark = [pytest.mark.k8s, pytest.mark.skipif(bool(MISSING), reason=MISSING)]

# right text of a rendered overlay, wrong text in its place, the server's message
SPOILT = [
    ("minReplicas: 1", "minReplica: 1", 'unknown field "spec.workerGroupSpecs[1].minReplica"'),
    ("version: v2", "version: v3", "Unsupported value"),
    ("maxReplicas: 2", "maxReplicas: two", "must be of type integer"),
    ("schedule: 0 3 * * *", "schedule: 0 25 * * *", "spec.schedule: Invalid value"),
    ("restartPolicy: Never", "restartPolicy: Always", "restartPolicy"),
    ("port: 8265", "port: 82650", "must be between 1 and 65535"),
    ("minAvailable: 1", "minAvailable: some", "minAvailable"),
    ("storage: 200Gi", "storage: 200GiB", "quantities must match"),
]


@dataclass(frozen=True)
class Server:
    """A control plane that runs, with its data in a folder."""

    folder: Path

    def __call__(self, *args: str, feed: str | None = None) -> subprocess.CompletedProcess[str]:
        command = [str(FOLDER / "server"), "kubectl", str(self.folder), *args]
        return subprocess.run(command, input=feed, capture_output=True, text=True, check=False, timeout=120)

    def rendered(self, *choice: str) -> str:
        """Return the base with these components, without kinds that the server does not know."""
        documents = rendered(choice, (str(FOLDER / "server"), "kubectl", str(self.folder), "kustomize"))
        return yaml.safe_dump_all(document for document in documents if document["kind"] not in UNKNOWN)

    def ready(self, *choice: str) -> dict[str, int]:
        """Replace the present choice by another, wait for it; return the pods of Ray, by group."""
        self("delete", OURS, "--all", "-n", "kgray", "--timeout=60s")
        assert wait_for_result(lambda: not self.get("pod", "-n", "kgray")["items"]), (
            "pods of the choice before stay"
        )
        self.renew_volumes()
        completed = self.apply(self.rendered(*choice))
        assert completed.returncode == 0, completed.stderr
        cluster = ("raycluster", "kgray", "-n", "kgray")
        wait_for_result(lambda: self.get(*cluster).get("status", {}).get("state") == "ready")
        status = self.get(*cluster).get("status", {})
        assert status.get("state") == "ready", (status, self("get", "events", "-n", "kgray").stdout[-3000:])
        pods = self.get("pod", "-n", "kgray", "-l", "ray.io/cluster=kgray")["items"]
        return dict(Counter(pod["metadata"]["labels"]["ray.io/group"] for pod in pods))

    def renew_volumes(self) -> None:
        """Replace all volumes: a volume whose claim was deleted is Released, and cannot be claimed again."""
        for kind in (("persistentvolumeclaims", "-n", "kgray"), ("persistentvolumes",)):
            completed = self("delete", kind[0], "--all", *kind[1:], "--timeout=60s")
            assert completed.returncode == 0, completed.stderr
        nodes = yaml.safe_load_all((FOLDER / "nodes.yaml").read_text(encoding="utf-8"))
        volumes = [document for document in nodes if document["kind"] == "PersistentVolume"]
        completed = self("create", "-f", "-", feed=yaml.safe_dump_all(volumes))
        assert completed.returncode == 0, completed.stderr

    def report(self) -> str:
        """Return pods, claims, volumes and the last events, for the message of a failure."""
        kinds = ("pods", "persistentvolumeclaims", "persistentvolumes", "events")
        return "\n".join(self("get", kind, "-n", "kgray").stdout[-3000:] for kind in kinds)

    def evict(self, pod: str) -> str:
        """Ask for an eviction as a drain does; return "" or why it is refused."""
        review = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": "kgray"},
        }
        path = f"/api/v1/namespaces/kgray/pods/{pod}/eviction"
        completed = self("create", "--raw", path, "-f", "-", feed=json.dumps(review))
        return completed.stderr if completed.returncode else ""

    def apply(self, text: str, *extra: str) -> subprocess.CompletedProcess[str]:
        return self("apply", "--validate=strict", *extra, "-f", "-", feed=text)

    def get(self, *args: str) -> Any:
        completed = self("get", *args, "-o", "json")
        return json.loads(completed.stdout) if completed.returncode == 0 else {"items": []}

    def placed(self, name: str) -> str:
        """Return the node of a pod; fail if it has none in time."""
        pod = wait_for_result(
            lambda: pod if (pod := self.get("pod", name, "-n", "kgray"))["spec"].get("nodeName") else None
        )
        assert pod, self.get("pod", name, "-n", "kgray")["status"]
        return str(pod["spec"]["nodeName"])


def wait_for_result(test: Callable[[], Any]) -> Any:
    """Return the first true answer, or the last answer at the end of the time."""
    end = time.monotonic() + PLACED_S
    while not (answer := test()) and time.monotonic() < end:
        time.sleep(0.5)
    return answer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield a server with the base applied; it is ended and its data deleted."""
    folder = tmp_path_factory.mktemp("k8s")
    subprocess.run([str(FOLDER / "server"), "start", str(folder)], check=True)
    try:
        subprocess.run([str(FOLDER / "server"), "operator", str(folder)], check=True)
        cluster_server = Server(folder)
        completed = cluster_server.apply(cluster_server.rendered())
        assert completed.returncode == 0, completed.stderr
        wait_for_result(
            lambda: cluster_server.get("serviceaccount", "default", "-n", "kgray").get("metadata")
        )
        yield cluster_server
    finally:
        subprocess.run([str(FOLDER / "server"), "wipe", str(folder)], check=True)


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: "+".join(choice) or "base")
def test_strict_validation_accepts_every_choice_of_components(server, choice):
    completed = server.apply(server.rendered(*choice), "--dry-run=server")
    assert completed.returncode == 0, completed.stderr


def test_strict_validation_accepts_every_job(server):
    for path in sorted((K8S / "jobs").glob("*.yaml")):
        completed = server("create", "--validate=strict", "--dry-run=server", "-f", str(path))
        assert completed.returncode == 0, completed.stderr


@pytest.mark.parametrize(("right", "wrong", "message"), SPOILT, ids=[mistake[1] for mistake in SPOILT])
def test_a_mistake_is_refused(server, right, wrong, message):
    text = server.rendered()
    assert right in text
    completed = server.apply(text.replace(right, wrong, 1), "--dry-run=server")
    assert completed.returncode != 0
    assert message in completed.stderr


PODS = {"headgroup": 1, "control": 2, "cpu": 1, "llm": 1, "embed": 1, "search": 2}


@pytest.mark.parametrize(
    ("choice", "pods"),
    [
        (("redis", "monitoring", "backup", "ingress", "neo4j-elsewhere"), PODS),
        (("tensor-parallel",), PODS),
        (("small", "redis", "backup"), {"headgroup": 1, "control": 1, "cpu": 1}),
        ((), PODS),
    ],
    ids=lambda choice: "+".join(choice) if isinstance(choice, tuple) else "",
)
def test_pods_of_a_choice_become_ready_and_services_select_them(server, choice, pods):
    assert server.ready(*choice) == pods
    expected_services = {"kgray", "kgray-search", "kgray-head-svc"}
    expected_services |= {"redis"} & {*choice} | ({"neo4j"} if "neo4j-elsewhere" not in choice else set())
    for service in sorted(expected_services):
        label = f"kubernetes.io/service-name={service}"
        endpoints = wait_for_result(
            lambda label=label: [
                end
                for endpoint_slice in server.get("endpointslice", "-n", "kgray", "-l", label)["items"]
                for end in endpoint_slice.get("endpoints") or []
                if end["conditions"]["ready"]
            ]
        )
        assert endpoints, f"{service} selects no pod that is ready\n{server.report()}"
    for pod in server.get("pod", "-n", "kgray", "-l", "ray.io/cluster=kgray")["items"]:
        group, node = pod["metadata"]["labels"]["ray.io/group"], pod["spec"]["nodeName"]
        assert node.startswith("gpu-" if group in {"llm", "embed"} else "cpu-"), (group, node)


def test_a_drain_evicts_pods_of_a_group_in_turn_and_never_the_head(server):
    """The replacement of the first pod finds no node until the second eviction has been refused."""
    pods = server.get("pod", "-n", "kgray", "-l", "ray.io/group=control")["items"]
    first, second = (pod["metadata"]["name"] for pod in pods)
    budget = ("poddisruptionbudget", "kgray-control", "-n", "kgray")
    assert wait_for_result(lambda: server.get(*budget).get("status", {}).get("disruptionsAllowed") == 1)
    nodes = [node["metadata"]["name"] for node in server.get("node")["items"]]
    assert server("cordon", *nodes).returncode == 0
    try:
        assert server.evict(first) == ""
        assert wait_for_result(lambda: server.get(*budget)["status"]["disruptionsAllowed"] == 0)
        assert "disruption budget" in server.evict(second)
    finally:
        assert server("uncordon", *nodes).returncode == 0
    assert wait_for_result(lambda: server.get(*budget)["status"]["disruptionsAllowed"] == 1)
    assert server.evict(second) == ""
    head = server.get("pod", "-n", "kgray", "-l", "ray.io/node-type=head")["items"][0]["metadata"]["name"]
    assert "disruption budget" in server.evict(head)


def test_the_operator_accepts_the_job_that_starts_the_actors(server):
    """Without a dashboard the job never ends; its fields are checked before it waits for the dashboard."""
    assert server("create", "-f", str(K8S / "jobs/up.yaml")).returncode == 0
    state = wait_for_result(
        lambda: server.get("rayjob", "kgray-up", "-n", "kgray").get("status", {}).get("jobDeploymentStatus")
    )
    events = server("get", "events", "-n", "kgray", "--field-selector", "involvedObject.kind=RayJob").stdout
    assert state not in {None, "ValidationFailed"}, events
    assert "Invalid" not in events


def test_a_cron_job_repeats_up(server):
    every = json.dumps({"spec": {"schedule": "* * * * *"}})
    assert server("patch", "cronjob", "kgray-up", "-n", "kgray", "-p", every).returncode == 0
    jobs = wait_for_result(
        lambda: [
            job
            for job in server.get("job", "-n", "kgray")["items"]
            for owner in job["metadata"].get("ownerReferences", [])
            if (owner["kind"], owner["name"]) == ("CronJob", "kgray-up")
        ]
    )
    assert jobs
    assert wait_for_result(lambda: server.get("pod", "-n", "kgray", "-l", "app=kgray-up")["items"])


def test_the_store_has_its_volume_and_the_http_server_its_replicas(server):
    for kind in ("statefulset/neo4j", "deployment/kgray-door"):
        completed = server("rollout", "status", kind, "-n", "kgray", f"--timeout={PLACED_S}s")
        assert completed.returncode == 0, completed.stdout + completed.stderr
    claims = server.get("persistentvolumeclaims", "-n", "kgray")["items"]
    assert {claim["status"]["phase"] for claim in claims} == {"Bound"}


def test_the_small_overlay_fits_on_one_machine_of_16_cores(server):
    cores = memory = 0.0
    for document in yaml.safe_load_all(server.rendered("small")):
        for number, containers in pods_of(document):
            requests = [container["resources"]["requests"] for container in containers]
            cores += number * sum(cpus(request["cpu"]) for request in requests)
            memory += number * sum(gigabytes(request["memory"]) for request in requests)
    assert 8 < cores <= 16
    assert 16 < memory <= 64


def pods_of(document: dict[str, Any]) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Yield the initial number of pods, and the containers of each."""
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


@pytest.mark.parametrize("name", ["kgray-refresh", "kgray-backup"])
def test_the_pod_of_a_cron_job_is_scheduled_on_a_cpu_node(server, name):
    completed = server.apply(server.rendered("backup"))
    assert completed.returncode == 0, completed.stderr
    job_name = f"tonight-{name}"
    assert server("create", "job", job_name, f"--from=cronjob/{name}", "-n", "kgray").returncode == 0
    pods = wait_for_result(lambda: server.get("pod", "-n", "kgray", "-l", f"job-name={job_name}")["items"])
    assert server.placed(pods[0]["metadata"]["name"]).startswith("cpu-")
