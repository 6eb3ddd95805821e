"""The Grafana board of k8s/: the metrics that its panels query, and the labels that separate them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parents[1] / "k8s/components/monitoring/kgray-board.json"
_METRIC = re.compile(r"((?:ray_)?kgray_\w+)(?:{([^}]*)})?")
_SUMMED_BY = re.compile(r"by \(([^)]*)\)")


def board() -> dict[str, Any]:
    reply: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return reply


def asked(prefix: str) -> dict[str, set[str]]:
    """Return {metric: labels that panels use} for the metrics with a prefix."""
    results: dict[str, set[str]] = {}
    for panel in board()["panels"]:
        for target in panel.get("targets", []):
            labels = {
                label for group in _SUMMED_BY.findall(target["expr"]) for label in re.findall(r"\w+", group)
            }
            matches = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert matches <= labels, (
                f"{panel['title']}: {matches - labels} is in the legend, and summed away"
            )
            for name, chosen in _METRIC.findall(target["expr"]):
                if name.startswith(prefix):
                    results.setdefault(name, set()).update(labels, re.findall(r"(\w+)[=!]", chosen))
    return results
