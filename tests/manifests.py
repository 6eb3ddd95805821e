"""The manifests of k8s/: objects, pod templates, and the output of kustomize for a choice of components."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
K8S = ROOT / "k8s"
KUBECTL = shutil.which("kubectl")
VALUES = K8S / "neo4j-values.yaml"  # of Neo4j's chart: no object
COMPONENTS = sorted(path.name for path in (K8S / "components").iterdir())
# The choices that are tried: each component alone, and all that go together.
OPTIONAL = [name for name in COMPONENTS if name not in {"small", "tensor-parallel"}]
CHOICES = [
    (),
    *[(name,) for name in COMPONENTS],
    ("small", *OPTIONAL),
    (*reversed(OPTIONAL), "small"),
    ("tensor-parallel", *OPTIONAL),
]
FEW_CHOICES = [
    choice for choice in CHOICES if not {*choice} < {*OPTIONAL} or not choice
]  # for the default run
Document = dict[str, Any]


class StrictLoader(yaml.SafeLoader):
    """Refuses a key that is written twice: kubectl would silently keep the second value."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"{node.start_mark}: a key is written twice"
        return super().construct_mapping(node, deep)


@functools.cache
def documents() -> list[tuple[Path, Document]]:
    """Return each object of the manifests with its file."""
    results = []
    for path in sorted(set(K8S.rglob("*.yaml")) - {VALUES}):
        for document in yaml.load_all(path.read_text(encoding="utf-8"), StrictLoader):
            results.append((path, document))
    return results


def objects(*kinds: str) -> list[Document]:
    """Return the objects of these kinds, whole ones only: a patch has no spec of its own kind's."""
    patches = {"head.yaml"}
    return [d for path, d in documents() if d["kind"] in kinds and path.name not in patches]


def templates(document: Any) -> Iterator[Document]:
    """Yield the pod templates of an object, at any depth."""
    for key, value in document.items() if isinstance(document, dict) else enumerate(document):
        if (
            key in {"template", "submitterPodTemplate"}
            and isinstance(value, dict)
            and "containers" in value.get("spec", {})
        ):
            yield value
        elif isinstance(value, dict | list):
            yield from templates(value)


PODS = [
    pytest.param(template, id=f"{path.stem}-{number}")
    for path, document in documents()
    for number, template in enumerate([document] if document["kind"] == "Pod" else templates(document))
]
(CLUSTER,) = objects("RayCluster")
GROUPS = {group["groupName"]: group for group in CLUSTER["spec"]["workerGroupSpecs"]}


@functools.cache
def rendered(choice: Sequence[str], program: tuple[str, ...] = (str(KUBECTL), "kustomize")) -> list[Document]:
    """Return the objects of the base with these components, in this order, as `kubectl kustomize` makes them.

    program: kubectl's, with the word that renders a folder
    """
    with tempfile.TemporaryDirectory() as folder:
        base, *parts = (
            os.path.relpath((K8S / path).resolve(), Path(folder).resolve())
            for path in ("base", *(f"components/{name}" for name in choice))
        )
        file = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "namespace": "kgray",
        }
        file |= {"resources": [base], "components": parts}
        Path(folder, "kustomization.yaml").write_text(yaml.safe_dump(file), encoding="utf-8")
        outcome = subprocess.run([*program, folder], capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr
    return list(yaml.load_all(outcome.stdout, StrictLoader))
