"""OpenTelemetry spans of the engine: of searches, of ingestion's stages, of calls to models.

An application that configures an exporter has loaded OpenTelemetry's API. In any other process a span costs
one look-up in a dict. A span has numbers, names of models and classes of errors: no text, group or key.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


def _api() -> Any:  # noqa: ANN401 - OpenTelemetry's API, or None
    """Return the API if it is loaded whole: another thread may be at it, and `__all__` is its last line."""
    module = sys.modules.get("opentelemetry.trace")
    return module if hasattr(module, "__all__") else None


@contextmanager
def span(name: str, attributes: Mapping[str, Any] | None = None, **options: Any) -> Iterator[Any]:  # noqa: ANN401
    """Open a span as the current span, and yield it; None without the API."""
    if (api := _api()) is None:
        yield None
        return
    options |= {"record_exception": False, "set_status_on_exception": False}  # both have the message
    with api.get_tracer("kgray").start_as_current_span(name, attributes=attributes, **options) as opened:
        try:
            yield opened
        except BaseException as error:
            opened.set_attribute("error.type", type(error).__name__)
            opened.set_status(api.StatusCode.ERROR)
            raise


@contextmanager
def model_call(path: str, model: str) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Open a span by the conventions for generative AI; yield a function that takes the answer's body."""
    operation = path.strip("/").partition("/")[0]
    attributes = {"gen_ai.operation.name": operation, "gen_ai.request.model": model}
    with span(f"{operation} {model}", attributes) as opened:

        def add_usage(body: Mapping[str, Any]) -> None:
            usage = body.get("usage") if opened is not None else None
            for field, kind in (("prompt_tokens", "input"), ("completion_tokens", "output")):
                if isinstance(usage, dict) and isinstance(count := usage.get(field), int):
                    opened.set_attribute(f"gen_ai.usage.{kind}_tokens", count)

        yield add_usage


def ended(name: str, seconds: float, attributes: Mapping[str, Any]) -> None:
    """Record a stage that has just ended as a span."""
    if (api := _api()) is not None:
        end = time.time_ns()
        start = end - int(seconds * 1e9)
        api.get_tracer("kgray").start_span(name, attributes=attributes, start_time=start).end(end)
