"""Rules that no schema has: of the network, secrets, Neo4j's image, budgets, shared memory and alerts."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from kgray.server.door import Metrics
from tests.manifests import (
    CLUSTER,
    GROUPS,
    K8S,
    KUBECTL,
    StrictLoader,
    documents,
    objects,
    rendered,
    templates,
)

PAGE = (K8S / "README.md").read_text(encoding="utf-8")
ALL = ("redis", "monitoring", "backup", "ingress")
Labels = dict[str, str]
needs_kubectl = pytest.mark.skipif(KUBECTL is None, reason="not installed: kubectl, which renders components")


# ------------------------------------------------------------------------------------------- the network


@dataclass(frozen=True)
class End:
    """A pod with its labels and its namespace's labels; namespace None = kgray's own."""

    labels: Labels = field(default_factory=dict)
    namespace: Labels | None = None


HEAD = End({"ray.io/cluster": "kgray", "ray.io/node-type": "head"})
NODES = {
    name: End(
        {"ray.io/cluster": "kgray", "ray.io/node-type": "worker", "ray.io/group": name} | labels_of_group
    )
    for name in GROUPS
    for labels_of_group in [GROUPS[name]["template"].get("metadata", {}).get("labels", {})]
}
OPERATOR = End(namespace={"kubernetes.io/metadata.name": "kuberay-system"})
PROMETHEUS = End(namespace={"kgray/monitors": "yes"})
PROGRAM = End(namespace={"kgray/uses": "yes"})
STRANGER = End(namespace={"kubernetes.io/metadata.name": "other"})
CLEAN_UP = End({"app.kubernetes.io/created-by": "kuberay-operator"})
RAY = {"HEAD": HEAD, **NODES}


def pod(app: str) -> End:
    """Return the pod with a label `app`, with all labels of its template."""
    pod_labels = [t["metadata"]["labels"] for _, d in documents() for t in templates(d) if "metadata" in t]
    (labels,) = [item for item in pod_labels if item.get("app") == app]
    return End(labels)


# from, to, port: each connection that a part needs
NEEDED = [
    *[(f"ray {a} to {b}", item, peer, 20000) for a, item in RAY.items() for b, peer in RAY.items()],
    *[(f"{name} to neo4j", item, pod("neo4j"), 7687) for name, item in NODES.items()],
    ("door to neo4j", pod("kgray-door"), pod("neo4j"), 7687),
    ("back-up to neo4j", pod("kgray-backup"), pod("neo4j"), 7687),
    ("upgrade to neo4j", pod("kgray-upgrade"), pod("neo4j"), 7687),
    ("operator to dashboard", OPERATOR, HEAD, 8265),
    ("reconciler to dashboard", pod("kgray-up"), HEAD, 8265),
    ("refresh to dashboard", pod("kgray-refresh"), HEAD, 8265),
    ("head to redis", HEAD, pod("redis"), 6379),
    ("clean-up to redis", CLEAN_UP, pod("redis"), 6379),
    ("program to door", PROGRAM, pod("kgray-door"), 8321),
    ("program to search", PROGRAM, NODES["search"], 8321),
    *[(f"prometheus to {name}", PROMETHEUS, item, 8080) for name, item in RAY.items()],
    ("prometheus to autoscaler", PROMETHEUS, HEAD, 44217),
    ("prometheus to dashboard", PROMETHEUS, HEAD, 44227),
    ("prometheus to door", PROMETHEUS, pod("kgray-door"), 8321),
    ("prometheus to search", PROMETHEUS, NODES["search"], 8321),
]
REFUSED = [
    ("door to Ray", pod("kgray-door"), HEAD, 6379),
    ("reconciler to Ray", pod("kgray-up"), HEAD, 6379),
    ("reconciler to neo4j", pod("kgray-up"), pod("neo4j"), 7687),
    ("worker to redis", NODES["cpu"], pod("redis"), 6379),
    ("program to neo4j", PROGRAM, pod("neo4j"), 7687),
    ("program to dashboard", PROGRAM, HEAD, 8265),
    ("program to a worker", PROGRAM, NODES["llm"], 8321),
    ("prometheus to neo4j", PROMETHEUS, pod("neo4j"), 7687),
    ("prometheus to Ray", PROMETHEUS, HEAD, 6379),
    ("stranger to door", STRANGER, pod("kgray-door"), 8321),
    ("stranger to search", STRANGER, NODES["search"], 8321),
]


def selects(selector: dict[str, Any], labels: Labels) -> bool:
    """Whether Kubernetes' label selector takes these labels."""
    operators = {
        "In": lambda item: labels.get(item["key"]) in item["values"],
        "NotIn": lambda item: labels.get(item["key"]) not in item["values"],
        "Exists": lambda item: item["key"] in labels,
        "DoesNotExist": lambda item: item["key"] not in labels,
    }
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        operators[item["operator"]](item) for item in selector.get("matchExpressions", [])
    )


def comes_from(peer: dict[str, Any], source: End) -> bool:
    if "namespaceSelector" in peer:
        namespace_labels = (
            {"kubernetes.io/metadata.name": "kgray"} if source.namespace is None else source.namespace
        )
        is_inside = selects(peer["namespaceSelector"], namespace_labels)
    else:
        is_inside = source.namespace is None
    return is_inside and selects(peer.get("podSelector", {}), source.labels)


def admitted(source: End, target: End, port: int) -> bool:
    """Tell whether a policy admits a connection; a target without a policy admits everything."""
    mine = [
        item["spec"]
        for item in objects("NetworkPolicy")
        if selects(item["spec"]["podSelector"], target.labels)
    ]
    return not mine or any(
        ("ports" not in rule or port in {item["port"] for item in rule["ports"]})
        and ("from" not in rule or any(comes_from(peer, source) for peer in rule["from"]))
        for policy in mine
        for rule in policy.get("ingress", [])
    )


@pytest.mark.parametrize(
    ("source", "target", "port"), [item[1:] for item in NEEDED], ids=[item[0] for item in NEEDED]
)
def test_each_required_connection_is_allowed(source, target, port):
    assert admitted(source, target, port)


@pytest.mark.parametrize(
    ("source", "target", "port"), [item[1:] for item in REFUSED], ids=[item[0] for item in REFUSED]
)
def test_other_connections_are_refused(source, target, port):
    assert not admitted(source, target, port)


# ------------------------------------------------------------------------------------------- secrets

SECRETS = {  # of each pod template, by its file and containers: the secrets that it may see
    "neo4j": {"kgray-neo4j"},
    "redis": {"kgray-redis"},
    "door": {"kgray-neo4j", "kgray-door"},
    "submit": {"kgray-ray"},
    "backup": {"kgray-neo4j", "kgray-backup"},
    "drill": set(),
    "upgrade": {"kgray-neo4j"},
    "weights": {"kgray-hub"},
    "shell": set(),
    "ray-head": set(),
    "ray-worker": {"kgray-neo4j", "kgray-models"},
    "ray-worker door": {"kgray-neo4j", "kgray-models", "kgray-ray"},
}


def secrets_of(template: dict[str, Any]) -> set[str]:
    """Return the secrets that a pod mounts or has in its environment."""
    names = {item["secret"]["secretName"] for item in template["spec"].get("volumes", []) if "secret" in item}
    for container in template["spec"]["containers"]:
        names |= {item["secretRef"]["name"] for item in container.get("envFrom", [])}
        keys = [item.get("valueFrom", {}).get("secretKeyRef") for item in container.get("env", [])]
        names |= {key["name"] for key in keys if key}
    return names


def test_each_pod_gets_only_its_own_secrets():
    for path, document in documents():
        for template in [document] if document["kind"] == "Pod" else templates(document):
            name = " ".join(item["name"] for item in template["spec"]["containers"])
            assert secrets_of(template) == SECRETS[name], (path.name, name)
            for volume in template["spec"].get("volumes", []):
                assert "secret" not in volume or volume["secret"]["items"], "keys are named one by one"


def test_the_readme_creates_each_required_secret():
    text = "\n".join(path.read_text(encoding="utf-8") for path in K8S.rglob("*.yaml"))
    assert objects("Secret") == []
    expectation = set(re.findall(r"name: (kgray-\w+)\s+key: (\S+)", text))
    expectation |= set(re.findall(r"secretName: (kgray-\w+)\s+items:\s+- key: (\S+)", text))
    expectation.add((CLUSTER["spec"]["authOptions"]["secretName"], "auth_token"))
    for name, key in expectation:
        command = re.search(rf"secret generic {name}((?:.*\\\n)*.*)", PAGE)
        assert command, f"no command makes {name}"
        assert f"--from-literal={key}=" in command[1], (name, key)
    assert {name for name, _ in expectation} == {"kgray-neo4j", "kgray-ray", "kgray-redis", "kgray-metrics"}
    optional = {"kgray-models", "kgray-door", "kgray-backup", "kgray-hub"}
    assert {name for name in optional if f"`{name}`" not in PAGE} == set()


# ------------------------------------------------------------------------------------------- Neo4j's image

# docker-neo4j, coredb/docker-entrypoint.sh: variables that it reads itself; every other NEO4J_* becomes a
# setting.
ENTRYPOINT_VARIABLES = {
    "NEO4J_ACCEPT_LICENSE_AGREEMENT", "NEO4J_AUTH", "NEO4J_AUTH_PATH", "NEO4J_DEBUG", "NEO4J_EDITION",
    "NEO4J_HOME", "NEO4J_PLUGINS", "NEO4J_SHA256", "NEO4J_TARBALL", "NEO4J_DEPRECATION_WARNING",
}  # fmt: skip
KNOWN_SETTINGS = {
    "server.memory.heap.initial_size", "server.memory.heap.max_size", "server.memory.pagecache.size",
}  # fmt: skip


def settings_of(names: list[str]) -> list[str]:
    """Return the settings that the image's start makes of variables; "_" is ".", "__" is "_"."""
    result = [name.removeprefix("NEO4J_") for name in names if name.startswith("NEO4J_")]
    setting_names = [
        item
        for item in result
        if f"NEO4J_{item}" not in ENTRYPOINT_VARIABLES
        and not item.endswith("_FILE")
        and not item[0].isdigit()
    ]
    return [item.replace("__", "\0").replace("_", ".").replace("\0", "_") for item in setting_names]


def test_the_neo4j_image_maps_variables_to_settings():
    names = ["NEO4J_PASSWORD", "NEO4J_AUTH", "NEO4J_AUTH_FILE", "NEO4J_server_memory_heap_max__size", "PATH"]
    assert settings_of(names) == ["PASSWORD", "server.memory.heap.max_size"]


def test_neo4j_variables_map_to_known_settings():
    pods = [
        t
        for _, d in documents()
        for t in ([d] if d["kind"] == "Pod" else templates(d))
        if any(c["image"].startswith("neo4j:") for c in t["spec"]["containers"])
    ]
    assert len(pods) == 2
    for template in pods:
        assert template["spec"]["enableServiceLinks"] is False, "NEO4J_SERVICE_HOST would be a setting"
        for container in template["spec"]["containers"]:
            assert "envFrom" not in container
            assert set(settings_of([item["name"] for item in container.get("env", [])])) <= KNOWN_SETTINGS


def test_the_neo4j_password_variable_precedes_its_reference():
    (stateful_set,) = [item for item in objects("StatefulSet") if item["metadata"]["name"] == "neo4j"]
    (container,) = stateful_set["spec"]["template"]["spec"]["containers"]
    first, second = container["env"][:2]
    assert first["name"] == "PASSWORD_OF_NEO4J"
    assert second == {"name": "NEO4J_AUTH", "value": f"neo4j/$({first['name']})"}
    assert "openssl rand -hex" in PAGE, "a password with / would be refused"
    assert container["livenessProbe"]["periodSeconds"] * container["livenessProbe"]["failureThreshold"] >= 60


# ------------------------------------------------------------------------------------------- Ray's nodes


def test_a_changed_spec_replaces_all_pods():
    assert CLUSTER["spec"]["upgradeStrategy"] == {"type": "Recreate"}


def test_a_disruption_budget_allows_a_drain():
    budgets = objects("PodDisruptionBudget")
    standing = {"head": 1, **{name: group["minReplicas"] for name, group in GROUPS.items()}}
    standing["door"] = next(d["spec"]["replicas"] for d in objects("Deployment"))
    for budget in budgets:
        assert budget["spec"].keys() == {"minAvailable", "selector"}
        assert isinstance(budget["spec"]["minAvailable"], int)
        name = budget["metadata"]["name"].removeprefix("kgray-")
        assert (standing[name] > budget["spec"]["minAvailable"]) is (name != "head"), name


def gibibytes(quantity: str) -> float:
    return float(quantity.removesuffix("Gi"))


def test_the_object_store_fits_into_shared_memory():
    """Our volume replaces KubeRay's; it is as large as the memory, and Ray needs 30 % of it."""
    names = []
    for name, group in GROUPS.items():
        spec = group["template"]["spec"]
        mounts = {mount["mountPath"]: mount["name"] for mount in spec["containers"][0]["volumeMounts"]}
        if "/dev/shm" not in mounts:  # noqa: S108 - in the pod
            continue
        names.append(name)
        (volume,) = [item for item in spec["volumes"] if item["name"] == mounts["/dev/shm"]]  # noqa: S108
        store = int(group["rayStartParams"]["object-store-memory"]) / 2**30
        assert volume["emptyDir"]["medium"] == "Memory"
        assert store < 0.95 * gibibytes(volume["emptyDir"]["sizeLimit"])
        memory = gibibytes(spec["containers"][0]["resources"]["limits"]["memory"])
        assert gibibytes(volume["emptyDir"]["sizeLimit"]) <= memory / 2, (
            "what lies there counts to the memory"
        )
    assert names == ["llm", "search"]


def test_ray_drains_a_node_within_the_grace_period_of_its_pod():
    drains = {}
    for name, group in {"head": CLUSTER["spec"]["headGroupSpec"], **GROUPS}.items():
        spec = group["template"]["spec"]
        env = {item["name"]: item.get("value") for item in spec["containers"][0]["env"]}
        drains[name] = int(env["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"])
        assert drains[name] + 10 < spec["terminationGracePeriodSeconds"]
    assert drains == {"head": 5, "control": 100, "cpu": 20, "llm": 20, "embed": 20, "search": 5}


def test_the_http_server_on_a_ray_node_shares_rays_files_and_processes():
    spec = GROUPS["search"]["template"]["spec"]
    ray, door = spec["containers"]
    assert ray["name"] == "ray-worker", "KubeRay takes the first container for Ray's"
    assert spec["shareProcessNamespace"] is True
    shared = [
        {mount["mountPath"]: mount["name"] for mount in item["volumeMounts"]}.get(path)
        for path in ("/tmp", "/dev/shm")  # noqa: S108 - in the pod
        for item in (ray, door)
    ]
    assert shared == ["tmp", "tmp", "shm", "shm"]
    assert {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN"} <= {item["name"] for item in door["env"]}
    assert GROUPS["search"]["rayStartParams"]["num-cpus"] == "0", "no actor stands there"
    alone = next(d for d in objects("Deployment"))["spec"]["template"]["spec"]["containers"][0]
    assert door["command"] == alone["command"]


# ------------------------------------------------------------------------------------------- alerts


def exported() -> dict[str, set[str]]:
    """Return {metric as Prometheus has it: its labels}, of the door and, by docs/ray.md, of Ray's nodes."""
    result: dict[str, set[str]] = {}
    for family in Metrics().registry.collect():
        plain = f"{family.name}_total" if family.type == "counter" else family.name
        result[plain] = set()
    for collector in vars(Metrics()).values():
        if hasattr(collector, "describe"):
            (family,) = collector.describe()
            plain = f"{family.name}_total" if family.type == "counter" else family.name
            result[plain] = set(collector._labelnames)
    page = (K8S.parent / "docs/ray.md").read_text(encoding="utf-8")  # compared with a run in tests/runtime
    for name, labels in re.findall(r"`(ray_kgray_\w+)(?:{([\w,]+)})?`", page):
        result[name] = set(filter(None, labels.split(",")))
    return result


ALERTS = [
    rule for item in objects("PrometheusRule") for group in item["spec"]["groups"] for rule in group["rules"]
]


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_queries_exported_metrics_and_names_a_remedy(rule):
    assert rule.keys() == {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"\d+m", rule["for"])
    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert rule["annotations"].keys() == {"summary", "description"}
    exported_metrics = exported()
    requested_metrics = re.findall(r"((?:ray_)?kgray_\w+)(?:{([^}]*)})?", rule["expr"])
    assert requested_metrics
    for name, chosen in requested_metrics:
        assert set(re.findall(r"(\w+)[=!]", chosen)) <= exported_metrics[name], name
    grouping = {
        label for group in re.findall(r"by \(([^)]*)\)", rule["expr"]) for label in re.findall(r"\w+", group)
    }
    assert grouping <= {label for name, _ in requested_metrics for label in exported_metrics[name]}
    assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) <= grouping
    assert rule["expr"].count("(") == rule["expr"].count(")")


def test_an_alert_exists_for_each_state_that_needs_action():
    text = " ".join(rule["expr"] for rule in ALERTS)
    for metric in (
        "ray_kgray_log_lag",
        "oldest_pending",
        'state="failed"',
        "quarantined",
        "writer_epoch",
        "5..",
    ):
        assert metric in text


# ------------------------------------------------------------------------------------------- scripts


def test_the_backup_job_creates_daily_backups_and_keeps_the_newest(tmp_path: Path):
    (job,) = [item for item in objects("CronJob") if item["metadata"]["name"] == "kgray-backup"]
    (container,) = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    (tmp_path / "kgray").write_text('#!/bin/sh\n[ ! -e "$2" ] && mkdir "$2"\n', encoding="utf-8")
    (tmp_path / "kgray").chmod(0o700)
    backups = tmp_path / "backups"
    for day in ("2020-01-01", "2020-01-02", "2020-01-03", "lost+found"):
        (backups / day).mkdir(parents=True)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "TO": str(backups), "KEEP": "2"}
    for _ in range(2):  # the second time the day's folder exists already
        subprocess.run(container["command"], env=env, check=True)
    backup_names = sorted(path.name for path in backups.iterdir())
    assert backup_names[0] == "2020-01-03"
    assert backup_names[2:] == ["lost+found"]
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", backup_names[1])


@needs_kubectl
def test_the_small_overlay_needs_no_secrets_of_other_overlays():
    needed = {
        match
        for document in rendered(("small",))
        for match in re.findall(
            r"(?:secretName|name): (kgray-(?:redis|metrics|backup))\b", yaml.safe_dump(document)
        )
    }
    assert needed == set()


def test_yaml_is_strict_in_every_file():
    for path in K8S.rglob("*.yaml"):
        list(yaml.load_all(path.read_text(encoding="utf-8"), StrictLoader))
