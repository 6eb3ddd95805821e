"""A language model in this process, on vLLM's AsyncLLM; the extra `vllm`, imported when the engine starts.

`EngineClient` takes and returns the same bodies of chat completions as a server's client. So prompts, reply
schemas, lenient parsing, repair and patience are shared with `openai_api`. It is for an actor of Ray: all
calls come from a single event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from kgray.errors import SettingsError, Unavailable
from kgray.models.belongings import Belongings
from kgray.models.engine_args import parsed
from kgray.models.openai_api.client import Client, Endpoint, Limiter, OnText, Rejected, TryLater
from kgray.models.openai_api.dialects import DIALECTS, Dialect
from kgray.settings.engine import EngineLimits

HOW_TO_GET_IT = "run `pip install 'kgray[vllm]'` where Ray's actors run"
ADDRESS = "this process"  # in place of a server's
_LOG = logging.getLogger("kgray.runtime")
# The priority of an answer that a user waits for: vLLM takes the lowest first, and ingestion has 0.
_ANSWER_FIRST = -1


class AbsentEngine(Client):
    """A placeholder in a process without the engine: it has its name and keys, and answers nothing."""

    def __init__(self, name: str) -> None:
        super().__init__(Endpoint(base_url=ADDRESS, name=name))

    async def _opened(self) -> Any:  # noqa: ANN401 - never returns
        raise SettingsError(
            'model.backend = "vllm" answers in Ray\'s workers alone, and this process asks it itself: '
            'set runtime.backend = "ray", or use a server, model.backend = "openai".'
        )


class _Statistics:
    """A logger for vLLM: stores the engine's statistics after each of its steps."""

    def __init__(self, counts: dict[str, int]) -> None:
        self._counts = counts

    def record(self, scheduler_stats: Any, iteration_stats: Any, **_: Any) -> None:  # noqa: ANN401 - vLLM's
        if scheduler_stats is not None:
            self._counts["running"] = scheduler_stats.num_running_reqs
            self._counts["waiting"] = scheduler_stats.num_waiting_reqs
        if iteration_stats is not None:
            self._counts["preempted"] += iteration_stats.num_preempted_reqs

    def log_engine_initialized(self) -> None: ...

    log = log_engine_initialized


def _ray_loggers() -> list[Any]:
    """Return the logger with which vLLM exports its own metrics through Ray; none outside of Ray."""
    ray: Any = sys.modules.get("ray")  # the runtime alone imports it
    if ray is None or not ray.is_initialized():
        return []
    from vllm.v1.metrics import ray_wrappers

    if ray_wrappers.ray_metrics is None:
        _LOG.warning("vLLM's own metrics are not exported: install 'ray[serve]', which its logger imports")
        return []
    return [ray_wrappers.RayPrometheusStatLogger]


class EngineClient(Client):
    """The narrow client of a model, on an engine that starts with the first call or with `start`.

    counts  tokens of prompts, cached tokens of prompts, tokens of replies; current and aborted calls;
            requests that the engine runs, that wait in its queue, that it has preempted
    """

    def __init__(
        self,
        name: str,
        *,
        limits: EngineLimits,
        timeout_s: float,
        patience_s: float,
        heads: Sequence[str] = (),
        on_dead: Callable[[], None] = lambda: None,
    ) -> None:
        """Start nothing. heads: of prompts, each read once at the start, so that its prefix is cached.

        timeout_s: for one reply, which is then aborted and asked for again; on_dead: the engine has died
        """
        max_concurrency = (
            2 * limits.max_num_seqs
        )  # the number of waiting requests equals the number of running ones, so it never idles
        endpoint = Endpoint(
            base_url=ADDRESS,
            name=name,
            timeout_s=timeout_s,
            max_concurrency=max_concurrency,
            patience_s=patience_s,
        )
        super().__init__(endpoint)
        DIALECTS[ADDRESS, name] = Dialect()  # fixed: nothing is probed
        self._limits, self._heads, self._on_dead = limits, heads, on_dead
        self._engine: Any = None
        self._belongings = Belongings()
        self._starting = asyncio.Lock()
        self._loading: asyncio.Task[None] | None = None
        self._numbers = itertools.count()
        tokens, calls = ("prompt_tokens", "cached_tokens", "reply_tokens"), ("calls", "aborted")
        self.counts = dict.fromkeys((*tokens, *calls, "running", "waiting", "preempted"), 0)

    async def start(self) -> None:
        """Start the engine and read the heads, unless it runs. Raises SettingsError.

        In a separate task: a call that is cancelled during the start must not load a second engine.
        """
        if self._loading is None or (self._loading.done() and self._engine is None):
            self._loading = asyncio.create_task(self._load())
        if not self._loading.done():
            await asyncio.shield(self._loading)

    async def _load(self) -> None:
        async with self._starting:
            engine = await asyncio.to_thread(self._built)
            self._session = SimpleNamespace(limiter=Limiter(self.endpoint.max_concurrency))
            self._engine = engine
            for head in self._heads:
                messages = [{"role": "system", "content": head}, {"role": "user", "content": ""}]
                await self._reply({"messages": messages, "max_tokens": 1})

    async def stop(self) -> None:
        """End the engine, and wait until vLLM has ended its processes. The next call starts it again."""
        async with self._starting:
            engine, self._engine = self._engine, None
            if engine is not None:
                await asyncio.to_thread(engine.shutdown, 45.0)  # vLLM's 5 s are too few on a busy machine
                await asyncio.to_thread(self._belongings.end)

    def _built(self) -> Any:  # noqa: ANN401 - vLLM's AsyncLLM
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        if self._limits.batch_invariant:
            os.environ["VLLM_BATCH_INVARIANT"] = "1"  # read when vLLM is imported
        try:
            arguments = parsed(self.endpoint.name, self._limits)
            from vllm.v1.engine.async_llm import AsyncLLM
        except ModuleNotFoundError as error:
            raise SettingsError(
                f'model.backend = "vllm" needs the package {error.name}, which is not installed: '
                f"{HOW_TO_GET_IT}."
            ) from None
        self._belongings = Belongings()
        try:
            with self._belongings.noting():
                # Called by vLLM with its configuration and the engine's number.
                loggers: list[Any] = [lambda *_: _Statistics(self.counts), *_ray_loggers()]
                return AsyncLLM.from_engine_args(arguments, stat_loggers=loggers)
        except (OSError, ValueError, RuntimeError) as error:
            raise SettingsError(
                f"model.name = {self.endpoint.name!r}: vLLM cannot start it: "
                f"{' '.join(str(error).split())[:300]}"
            ) from None

    async def _opened(self) -> Any:  # noqa: ANN401 - an object with a limiter
        await self.start()
        return self._session

    async def _once(self, session: Any, post: Any, sent_at: float) -> dict[str, Any]:  # noqa: ANN401, ARG002
        """Return the body of a completion; a call that is cancelled or too slow is aborted."""
        from vllm.exceptions import VLLMClientError
        from vllm.v1.engine.exceptions import EngineDeadError

        await self.start()  # another call may have found it dead
        self.counts["calls"] += 1
        pieces: list[str] = []  # pieces that the listener has received: such a reply is not requested again
        listener = None if post.listener is None or post.if_slow else post.listener()

        def take(piece: str) -> None:
            pieces.append(piece)
            if listener is not None:
                listener(piece)

        try:
            async with asyncio.timeout(self.endpoint.timeout_s):
                first = {"priority": _ANSWER_FIRST} if listener else {}
                return await self._reply(post.body, take if listener else None, **first)
        except TimeoutError:
            self.counts["aborted"] += 1
            reason = f"gave no reply within {self.endpoint.timeout_s:g} s"
            if pieces:
                raise Unavailable(f"the model {reason}, and broke off its answer: ask again") from None
            raise TryLater(reason, worked=True) from None
        except asyncio.CancelledError:
            self.counts["aborted"] += 1
            raise
        except EngineDeadError:
            self._on_dead()
            if pieces:
                raise Unavailable("the model's engine died in the middle of an answer: ask again") from None
            raise TryLater("has died", worked=True) from None
        except (VLLMClientError, ValueError) as error:
            raise Rejected(" ".join(str(error).split())[:300]) from None
        finally:
            self.counts["calls"] -= 1

    async def _reply(
        self, body: Mapping[str, Any], on_text: OnText | None = None, *, priority: int = 0
    ) -> dict[str, Any]:
        """Return the body of a completion. on_text: takes each piece of the reply as it is written."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        form = body.get("response_format", {}).get("json_schema")
        parameters = SamplingParams(
            max_tokens=body["max_tokens"],
            temperature=body.get("temperature", 0.0),
            structured_outputs=StructuredOutputsParams(json=form["schema"]) if form else None,
            output_kind=RequestOutputKind.DELTA if on_text else RequestOutputKind.FINAL_ONLY,
        )
        ids = self._engine.get_tokenizer().apply_chat_template(
            body["messages"],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
            enable_thinking=False,
        )
        last: Any = None
        text, written = "", 0  # written: tokens of the reply
        number = f"kgray-{next(self._numbers)}"
        async for last in self._engine.generate(
            {"prompt_token_ids": list(ids)}, parameters, request_id=number, priority=priority
        ):
            (out,) = last.outputs
            text, written = text + out.text, written + len(out.token_ids)
            if on_text and out.text:
                on_text(out.text)
        self.counts["prompt_tokens"] += len(ids)
        self.counts["cached_tokens"] += last.num_cached_tokens or 0
        self.counts["reply_tokens"] += written
        return {
            "choices": [{"message": {"content": text}, "finish_reason": out.finish_reason}],
            "usage": {"prompt_tokens": len(ids), "completion_tokens": written},
        }
