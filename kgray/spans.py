"""OpenTelemetry spans of the engine: of searches, of ingestion's stages, of calls to models.

Who configures where spans go has loaded OpenTelemetry's API. In a process that has not, a span costs a
look into a dict. A span has numbers, names of models and classes of errors: no text, group or key.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


def _api() -> Any:  # noqa: ANN401 - OpenTelemetry's API, or None
    """Return the API where it is loaded; `__all__` is its last line: another thread may be loading it."""
    found = sys.modules.get("opentelemetry.trace")
    return found if hasattr(found, "__all__") else None


@contextmanager
def span(name: str, about: Mapping[str, Any] | None = None, **how: Any) -> Iterator[Any]:  # noqa: ANN401
    """Make a span the current one, and give it, or None. about: attributes."""
    if (api := _api()) is None:
        yield None
        return
    how |= {"record_exception": False, "set_status_on_exception": False}  # both have the message
    with api.get_tracer("kgray").start_as_current_span(name, attributes=about, **how) as made:
        try:
            yield made
        except BaseException as error:
            made.set_attribute("error.type", type(error).__name__)
            made.set_status(api.StatusCode.ERROR)
            raise


@contextmanager
def model_call(path: str, model: str) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Make a span of a call, by the conventions for generative AI; give what takes the body of its answer."""
    does = path.strip("/").partition("/")[0]
    with span(f"{does} {model}", {"gen_ai.operation.name": does, "gen_ai.request.model": model}) as made:

        def tell(body: Mapping[str, Any]) -> None:
            usage = body.get("usage") if made is not None else None
            for given, told in (("prompt_tokens", "input"), ("completion_tokens", "output")):
                if isinstance(usage, dict) and isinstance(count := usage.get(given), int):
                    made.set_attribute(f"gen_ai.usage.{told}_tokens", count)

        yield tell


def ended(name: str, seconds: float, about: Mapping[str, Any]) -> None:
    """Tell of something that has just ended, as a span of its own."""
    if (api := _api()) is not None:
        now = time.time_ns()
        began = now - int(seconds * 1e9)
        api.get_tracer("kgray").start_span(name, attributes=about, start_time=began).end(now)
