"""The manifests of `k8s/`: well-formed, in their schemas, in agreement with each other and with kgray.

A real server checks them in tests/k8s (`make test-k8s`). KubeRay's operator
refuses more than its schema does; its rules are mirrored here.
"""

from __future__ import annotations

import gzip
import os
import re
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from kgray import __version__
from kgray.cli import cli
from kgray.runtime.spec import load_profile
from kgray.settings import load as load_settings
from tests.board import board
from tests.manifests import (
    CLUSTER,
    FEW_CHOICES,
    GROUPS,
    K8S,
    KUBECTL,
    PODS,
    ROOT,
    VALUES,
    Document,
    StrictLoader,
    documents,
    objects,
    rendered,
    templates,
)

KUBERNETES = "1.36"
OURS = "kgray"
IMAGES = ("kgray", "kgray-door")
FOREIGN_APIS = ("ray.io/", "monitoring.", "kustomize.")  # kinds that are not Kubernetes' own
RAY_PORTS = {
    "gcs-server": 6379, "dashboard": 8265, "client": 10001, "serve": 8000, "metrics": 8080,
    "as-metrics": 44217, "dash-metrics": 44227,
}  # fmt: skip
FOLDERS = sorted(path.parent for path in K8S.rglob("kustomization.yaml"))


@pytest.mark.parametrize("overlay", FOLDERS, ids=lambda path: path.name)
def test_a_kustomization_uses_every_file_of_its_folder(overlay):
    text = (overlay / "kustomization.yaml").read_text(encoding="utf-8")
    file = next(yaml.load_all(text, StrictLoader))
    patches = [patch["path"] for patch in file.get("patches", []) if "path" in patch]
    generated = [name for item in file.get("configMapGenerator", []) for name in item["files"]]
    used = {*file.get("resources", []), *patches, *generated, "kustomization.yaml"}
    assert {path.name for path in overlay.iterdir()} == {name for name in used if "/" not in name}


@pytest.mark.skipif(KUBECTL is None, reason="not installed: kubectl, which renders an overlay")
@pytest.mark.parametrize("choice", FEW_CHOICES, ids=lambda choice: "+".join(choice) or "base")
def test_every_combination_of_components_renders_into_one_namespace(choice):
    result = rendered(choice)
    assert {d["metadata"].get("namespace") for d in result if d["kind"] != "Namespace"} == {OURS}
    images = {c["image"] for d in result for t in templates(d) for c in t["spec"]["containers"]}
    assert {image for image in images if image.startswith(OURS)} == {
        f"{name}:{__version__}" for name in IMAGES
    }
    kinds = {(d["kind"], d["metadata"]["name"]) for d in result}
    assert (("StatefulSet", "neo4j") in kinds) is ("neo4j-elsewhere" not in choice)
    assert (("StatefulSet", "redis") in kinds) is ("redis" in choice)
    (cluster,) = [d for d in result if d["kind"] == "RayCluster"]
    assert ("gcsFaultToleranceOptions" in cluster["spec"]) is ("redis" in choice)
    groups = [group["groupName"] for group in cluster["spec"]["workerGroupSpecs"]]
    assert groups == (["control", "cpu"] if "small" in choice else list(GROUPS))
    (settings,) = [d for d in result if d["metadata"]["name"] == "kgray-settings"]
    assert settings["data"].keys() == {"kgray.toml", "profile.toml"}
    assert ("tensor_parallel = 2" in settings["data"]["profile.toml"]) is ("tensor-parallel" in choice)
    unique_names(result)
    every_service_and_budget_selects_a_pod(result)


def unique_names(documents_of_choice: list[Document]) -> None:
    names = [(d["kind"], d["metadata"]["name"]) for d in documents_of_choice]
    assert len(names) == len(set(names))


def every_service_and_budget_selects_a_pod(documents_of_choice: list[Document]) -> None:
    pods = [labels_and_ports(d) for d in documents_of_choice if d["kind"] in {"Deployment", "StatefulSet"}]
    (cluster,) = [d for d in documents_of_choice if d["kind"] == "RayCluster"]
    for group in cluster["spec"]["workerGroupSpecs"]:
        labels, ports = labels_and_ports(group)
        pods.append((labels | {"ray.io/cluster": "kgray", "ray.io/group": group["groupName"]}, ports))
    pods.append(({"ray.io/cluster": "kgray", "ray.io/node-type": "head"}, {*RAY_PORTS.values()}))
    for document in documents_of_choice:
        selector = document["spec"].get("selector") if "spec" in document else None
        if document["kind"] == "Service":
            ports = {port["port"] for port in document["spec"]["ports"]}
            assert any(selector.items() <= labels.items() and ports <= has for labels, has in pods), document
        elif document["kind"] == "PodDisruptionBudget":
            assert any(selector["matchLabels"].items() <= labels.items() for labels, _ in pods), document


def labels_and_ports(holder: Document) -> tuple[dict[str, str], set[int]]:
    template = holder.get("template") or holder["spec"]["template"]
    ports = {
        port["containerPort"] for item in template["spec"]["containers"] for port in item.get("ports", [])
    }
    return template.get("metadata", {}).get("labels", {}), ports


@pytest.mark.parametrize(
    "document",
    [d for _, d in documents() if not d["apiVersion"].startswith(FOREIGN_APIS)],
    ids=lambda d: f"{d['kind']}-{d['metadata'].get('name') or d['metadata']['generateName']}",
)
def test_every_kubernetes_field_is_in_its_schema(document):
    kubernetes_validate.validate(document, KUBERNETES, strict=True)


def test_every_kuberay_field_is_in_its_schema():
    folder = os.environ.get("KGRAY_TEST_RAY_CRDS")
    if not folder:
        pytest.skip(
            "KGRAY_TEST_RAY_CRDS is not set: the folder of KubeRay's definitions (ray.io_*.yaml, .gz)"
        )
    schemas = dict(map(schema_of, Path(folder).glob("ray.io_*.yaml*")))
    for document in objects("RayCluster", "RayJob"):
        jsonschema.Draft7Validator(schemas[document["kind"]]).validate(document)
    broken = {**CLUSTER, "spec": {**CLUSTER["spec"], "rayVersions": "2"}}
    assert not jsonschema.Draft7Validator(schemas["RayCluster"]).is_valid(broken)


def schema_of(path: Path) -> tuple[str, Document]:
    """Return the kind that a definition is of, and the schema of its version v1."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    definition = yaml.load(text, yaml.CSafeLoader)
    (version,) = (v for v in definition["spec"]["versions"] if v["name"] == "v1")
    return definition["spec"]["names"]["kind"], closed(version["schema"]["openAPIV3Schema"])


def closed(schema: Any) -> Any:
    """Return a schema that refuses unknown fields, as the server does when it decodes strictly."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: closed(value) for key, value in schema.items() if not str(key).startswith("x-kubernetes")}
    if (
        isinstance(result.get("properties"), dict)
        and "metadata" in result["properties"]
        and len(result["properties"]) == 1
    ):
        return result
    if isinstance(result.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        result.setdefault("additionalProperties", False)
        if result["properties"].get("metadata") == {"type": "object"}:
            result["properties"]["metadata"] = {"type": "object"}
    if schema.get("x-kubernetes-int-or-string"):
        result = {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    return result


# ------------------------------------------------------------------------ refusals of the operator


def test_the_head_declares_all_ray_ports():
    (container,) = CLUSTER["spec"]["headGroupSpec"]["template"]["spec"]["containers"]
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == RAY_PORTS


def test_every_node_keeps_idle_task_processes():
    """Ray kills idle processes of ended jobs, as that of `kgray up`, at this interval: by default 200 ms."""
    for group in (CLUSTER["spec"]["headGroupSpec"], *GROUPS.values()):
        container = group["template"]["spec"]["containers"][0]  # Ray's, as KubeRay takes it
        env = {item["name"]: item.get("value") for item in container["env"]}
        assert int(env["RAY_kill_idle_workers_interval_ms"]) >= 60_000


def test_no_worker_group_declares_resources_twice():
    for group in (CLUSTER["spec"]["headGroupSpec"], *GROUPS.values()):
        assert "labels" not in group["rayStartParams"]
        assert not (
            group.get("resources") and {"num-cpus", "num-gpus", "memory"} & {*group["rayStartParams"]}
        )


def test_tokens_and_jobs_meet_the_rules_of_the_operator():
    assert tuple(map(int, CLUSTER["spec"]["rayVersion"].split("."))) >= (2, 52, 0)
    for job in objects("RayJob"):
        assert job["spec"]["clusterSelector"] == {"ray.io/cluster": CLUSTER["metadata"]["name"]}
        assert not {"backoffLimit", "suspend", "rayClusterSpec", "ttlSecondsAfterFinished"} & {*job["spec"]}
        assert job["spec"]["entrypointNumCpus"] > 0, "the head has none: a driver asks for a worker's"


def test_no_object_needs_a_disabled_feature_gate():
    assert not {"networkPolicy", "tlsOptions", "historyServerOptions"} & {*CLUSTER["spec"]}
    assert objects("RayCronJob") == []


# ------------------------------------------------------------------------------- pods


@pytest.mark.parametrize("template", PODS)
def test_a_pod_runs_as_an_unprivileged_user_and_requests_its_resources(template):
    spec = template["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in spec["containers"]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert ":latest" not in container["image"]
        requests, limits = (container["resources"].get(part, {}) for part in ("requests", "limits"))
        assert {"cpu", "memory"} <= {*requests}
        assert limits["memory"] == requests["memory"], "memory beyond the request is taken back by a kill"
        assert limits.get("nvidia.com/gpu") == requests.get("nvidia.com/gpu")


@pytest.mark.parametrize("template", PODS)
def test_a_pod_writes_only_on_its_own_volumes(template):
    """All but Neo4j's image, whose start writes the settings beside the program."""
    for container in template["spec"]["containers"]:
        readonly = container["securityContext"].get("readOnlyRootFilesystem", False)
        assert readonly is not container["image"].startswith("neo4j:"), container["name"]
        if container["image"] in IMAGES:
            mounts = {item["mountPath"]: item for item in container["volumeMounts"]}
            empty = {item["name"] for item in template["spec"]["volumes"] if "emptyDir" in item}
            assert mounts["/tmp"]["name"] in empty  # noqa: S108 - in the pod
            assert not mounts["/tmp"].get("readOnly")  # noqa: S108 - as above
            home = [item["value"] for item in container.get("env", []) if item["name"] == "HOME"]
            assert home == ["/tmp"] or "ray" not in container["name"], "caches of libraries"  # noqa: S108


@pytest.mark.parametrize("template", PODS)
def test_a_pod_mounts_exactly_its_declared_volumes(template):
    spec = template["spec"]
    declared = {volume["name"] for volume in spec.get("volumes", [])}
    mounted = {mount["name"] for c in spec["containers"] for mount in c.get("volumeMounts", [])}
    assert mounted - declared <= {"data"}  # of a StatefulSet's claim
    assert declared <= mounted


POD_MONITOR = {  # of the Prometheus operator: the fields that are used here, as its definition has them
    "type": "object",
    "additionalProperties": False,
    "required": ["selector", "podMetricsEndpoints"],
    "properties": {
        "selector": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"matchLabels": {"type": "object", "additionalProperties": {"type": "string"}}},
        },
        "podMetricsEndpoints": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "port": {"type": "string"},
                    "path": {"type": "string"},
                    "authorization": {
                        "type": "object",
                        "additionalProperties": False,
                        "properties": {
                            "type": {"type": "string"},
                            "credentials": {
                                "type": "object",
                                "additionalProperties": False,
                                "required": ["key"],
                                "properties": {"name": {"type": "string"}, "key": {"type": "string"}},
                            },
                        },
                    },
                },
            },
        },
    },
}


def test_pod_monitors_use_declared_ports_and_created_keys():
    page = (K8S / "README.md").read_text(encoding="utf-8")
    labelled = [(t["metadata"]["labels"], t) for _, d in documents() for t in templates(d) if "metadata" in t]
    labelled.append(({"ray.io/cluster": "kgray"}, CLUSTER["spec"]["headGroupSpec"]["template"]))
    for monitor in objects("PodMonitor"):
        jsonschema.Draft7Validator(POD_MONITOR).validate(monitor["spec"])
        expectation = monitor["spec"]["selector"]["matchLabels"]
        pods = [template for labels, template in labelled if expectation.items() <= labels.items()]
        containers = [item for pod in pods for item in pod["spec"]["containers"]]
        ports = {port["name"]: port["containerPort"] for item in containers for port in item.get("ports", [])}
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            let_in = {
                port["port"]
                for policy in objects("NetworkPolicy")
                if policy["metadata"]["name"] == "monitoring"
                for rule in policy["spec"]["ingress"]
                for port in rule["ports"]
            }
            assert ports[endpoint["port"]] in let_in
            if "authorization" in endpoint:
                key = endpoint["authorization"]["credentials"]
                assert f"secret generic {key['name']} --from-literal={key['key']}=" in page


def test_the_grafana_dashboard_is_valid():
    panels = board()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells_taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & cells_taken, f"{panel['title']} lies over another panel"
        assert max(x for x, _ in cells) < 24
        cells_taken |= cells
        assert panel["type"] == "row" or all(
            item["datasource"]["uid"] == "${source}" for item in panel["targets"]
        )


def test_the_neo4j_chart_values_equal_our_manifest():
    values = next(yaml.load_all(VALUES.read_text(encoding="utf-8"), StrictLoader))
    (stateful_set,) = [item for item in objects("StatefulSet") if item["metadata"]["name"] == "neo4j"]
    (container,) = stateful_set["spec"]["template"]["spec"]["containers"]
    environment = {item["name"]: item.get("value") for item in container["env"]}
    for name, value in values["config"].items():
        assert environment["NEO4J_" + name.replace("_", "__").replace(".", "_")] == value
    assert values["neo4j"]["resources"] == container["resources"]["requests"]
    claim = stateful_set["spec"]["volumeClaimTemplates"][0]["spec"]
    assert values["volumes"]["data"]["defaultStorageClass"] == {
        "accessModes": claim["accessModes"],
        "requests": claim["resources"]["requests"],
    }
    label = stateful_set["spec"]["template"]["metadata"]["labels"]["app"]
    assert values["neo4j"]["name"] == label  # the chart gives its pods this label, which network.yaml knows
    page = (K8S / "README.md").read_text(encoding="utf-8")
    assert f"secret generic {values['neo4j']['passwordFromSecret']} --from-literal=NEO4J_AUTH=" in page


def test_every_reference_has_a_target():
    names = {
        (d["kind"], d["metadata"]["name"]) for d in objects("PersistentVolumeClaim", "Service", "StatefulSet")
    }
    text = "\n".join(path.read_text(encoding="utf-8") for path in K8S.rglob("*.yaml"))
    for stateful in objects("StatefulSet"):
        for claim in stateful["spec"]["volumeClaimTemplates"]:
            names.add(
                ("PersistentVolumeClaim", f"{claim['metadata']['name']}-{stateful['metadata']['name']}-0")
            )
    assert {("PersistentVolumeClaim", name) for name in re.findall(r"claimName: (\S+)", text)} <= names
    assert set(re.findall(r"configMap:\s+name: (\S+)", text)) == {"kgray-settings"}
    assert {("Service", name) for name in re.findall(r"serviceName: (\S+)", text)} <= names


def test_every_pod_is_reachable_by_its_clients_and_every_policy_selects_a_pod():
    labels = [{"ray.io/cluster": "kgray", "ray.io/node-type": "head"}]
    labels += [
        {"ray.io/cluster": "kgray", "ray.io/node-type": "worker", "ray.io/group": name} for name in GROUPS
    ]
    labels += [
        template["metadata"]["labels"]
        for _, d in documents()
        for template in templates(d)
        if "metadata" in template
    ]
    for guard in objects("NetworkPolicy", "PodDisruptionBudget"):
        expectation = (guard["spec"].get("podSelector") or guard["spec"].get("selector") or {}).get(
            "matchLabels", {}
        )
        assert any(expectation.items() <= pod_labels.items() for pod_labels in labels), guard["metadata"][
            "name"
        ]


# ------------------------------------------------------------------------ agreement with kgray


def test_versions_equal_the_versions_of_the_package():
    pins = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
        if "==" in line
    )
    assert CLUSTER["spec"]["rayVersion"] == pins["ray"]
    file = (K8S / "base/kustomization.yaml").read_text(encoding="utf-8")
    images = next(yaml.load_all(file, StrictLoader))["images"]
    assert images == [{"name": name, "newTag": __version__} for name in IMAGES]


def test_every_command_and_script_in_the_manifests_exists():
    commands = [shlex.split(job["spec"]["entrypoint"]) for job in objects("RayJob")]
    commands += [
        c["command"]
        for _, d in documents()
        for t in templates(d)
        for c in t["spec"]["containers"]
        if "command" in c
    ]
    ran = [command[command.index("--") + 1 :] if command[0] == "ray" else command for command in commands]
    lines = [line.strip() for command in ran if command[0] == "sh" for line in command[-1].splitlines()]
    ran += [shlex.split(line, comments=True) for line in lines if line.startswith(f"{OURS} ")]
    for command in ran:
        if command[0] == OURS:
            called = cli.get_command(None, command[1])  # type: ignore[arg-type]
            assert called is not None, command
            known_options = {name for option in called.params for name in option.opts}
            assert {word for word in command if word.startswith("--")} <= known_options
        elif command[0] == "python":
            assert (ROOT / "jobs" / Path(command[1]).name).is_file(), command


@pytest.mark.parametrize("folder", ["base", "components/small"])
def test_the_settings_and_the_profile_of_the_cluster_are_valid(folder):
    settings = load_settings(config=K8S / folder / "kgray.toml", environ={})
    assert (settings.store.backend, settings.runtime.backend) == ("neo4j", "ray")
    head = f"{CLUSTER['metadata']['name']}-head-svc:{RAY_PORTS['gcs-server']}"  # KubeRay's service
    assert settings.runtime.address == head
    (bolt,) = [item for item in objects("Service") if item["metadata"]["name"] == "neo4j"]
    assert settings.store.uri == f"bolt://neo4j:{bolt['spec']['ports'][0]['port']}"
    assert load_profile(K8S / folder / "profile.toml").sequencer.shards >= 1


@pytest.mark.skipif(KUBECTL is None, reason="not installed: kubectl, which renders the components")
@pytest.mark.parametrize(
    "choice", [(), ("small",), ("tensor-parallel",)], ids=["base", "small", "tensor-parallel"]
)
def test_every_actor_of_the_profile_fits_into_a_worker_group(choice, tmp_path):
    result = rendered(choice)
    (cluster,) = [d for d in result if d["kind"] == "RayCluster"]
    (settings,) = [d for d in result if d["metadata"]["name"] == "kgray-settings"]
    (tmp_path / "profile.toml").write_text(settings["data"]["profile.toml"], encoding="utf-8")
    groups = {group["groupName"]: group for group in cluster["spec"]["workerGroupSpecs"]}
    profile = load_profile(tmp_path / "profile.toml")
    sequencer = profile.sequencer
    at_store = 2 * sequencer.shards + 1  # sequencers, writers, and the scheduler
    pools = [(at_store, sequencer.cpus, 0.0, sequencer.memory_mb, dict(sequencer.labels))]
    pools += [
        (pool.maximum, pool.cpus, pool.gpus, pool.memory_mb, dict(pool.labels))
        for pool in (profile.extraction, profile.judging, profile.embedding, profile.reranking)
        if pool.maximum
    ]
    resources_of: dict[str, list[float]] = {}
    for actors, *each, labels in pools:
        assert labels.keys() == {"kgray"}
        total = resources_of.setdefault(labels["kgray"], [0.0, 0.0, 0.0])
        resources_of[labels["kgray"]] = [
            sum(pair) for pair in zip(total, (actors * n for n in each), strict=True)
        ]
    for name, (cpus, gpus, memory_mb) in resources_of.items():
        assert groups[name]["labels"] == {"kgray": name}
        (container,) = groups[name]["template"]["spec"]["containers"]
        has, max_replicas = container["resources"]["limits"], groups[name]["maxReplicas"]
        assert cpus <= max_replicas * int(has["cpu"])
        assert gpus <= max_replicas * int(has.get("nvidia.com/gpu", 0))
        assert memory_mb <= max_replicas * int(has["memory"].removesuffix("Gi")) * 1024
    (container,) = groups["control"]["template"]["spec"]["containers"]
    env = {item["name"]: item.get("value") for item in container["env"]}
    drain_s = float(env["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"])
    assert profile.limits.grace_s + 10 < drain_s, "a sequencer commits before Ray ends it"
    pools = (profile.extraction, profile.judging, profile.embedding, profile.reranking)
    deadlines = [profile.limits.start_deadline_s, *(pool.start_deadline_s for pool in pools if pool.labels)]
    assert min(deadlines) >= 1800, "a new node pulls an image of gigabytes first"
    cards = [
        int(item["template"]["spec"]["containers"][0]["resources"]["limits"].get("nvidia.com/gpu", 0))
        for item in groups.values()
    ]
    assert profile.engine.tensor_parallel <= max(1, *cards), "STRICT_PACK: all cards of an engine on one node"
