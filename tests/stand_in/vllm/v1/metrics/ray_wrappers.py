from __future__ import annotations

from typing import Any

from ray.util import metrics as ray_metrics

from vllm import note

__all__ = ["RayPrometheusStatLogger", "ray_metrics"]


class RayPrometheusStatLogger:
    """Stands for the logger that exports vLLM's metrics through Ray."""

    def __init__(self, *_: Any, **__: Any) -> None:
        note("metrics")

    def record(self, *_: Any, **__: Any) -> None: ...

    def log_engine_initialized(self) -> None: ...
