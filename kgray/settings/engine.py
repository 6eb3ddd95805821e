"""The limits and arguments of an engine of vLLM: the table [engine] of a cluster profile.

`[engine.args]` passes every other argument of vLLM's command line through, by its name with underscores. This
module refuses the arguments that kgray sets; vLLM's own parser checks the others (`backends.engine_args`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, StrictBool
from pydantic.dataclasses import dataclass

from kgray.settings.checks import CLOSED, fault, within

_Count = Annotated[int, within(1, 100_000)]
_ONE_ENGINE = "each worker has one engine: set extraction.workers, which starts more of them"
_ONE_LINE = "kgray starts vLLM in an actor of Ray, which finds its nodes: leave it out"
# Argument of vLLM -> the reason that a profile cannot set it, and the remedy.
PROTECTED: Mapping[str, str] = {
    "model": "the name is part of the keys of stored replies: set model.name",
    "max_num_seqs": "the seats of engines are counted by it: set engine.max_num_seqs",
    "max_num_batched_tokens": "it counts for memory: set engine.max_num_batched_tokens",
    "max_model_len": "it counts for memory: set engine.max_model_len",
    "gpu_memory_utilization": "other models share the card: set engine.memory_share",
    "tensor_parallel_size": "the placement group has a bundle for each card: set engine.tensor_parallel",
    "enforce_eager": "it has a key of its own: set engine.eager",
    "distributed_executor_backend": "it follows from the number of cards: set engine.tensor_parallel",
    "enable_prefix_caching": "most of a prompt is its cached head: leave it out",
    "scheduling_policy": "answers to users go before ingestion by it: leave it out",
    "disable_log_stats": "the metrics come from these statistics: leave it out",
    "skip_tokenizer_init": "kgray writes prompts with the tokenizer: leave it out",
    "runner": "kgray reads texts that the model generates: leave it out",
    "convert": "kgray reads texts that the model generates: leave it out",
    "hf_token": "a profile holds no secret: set HF_TOKEN_PATH where the workers run",
    "enable_lora": "no request names an adapter: merge it into the weights, or let vLLM's own server load "
    'it and set model.backend = "openai"',
    **dict.fromkeys(("data_parallel_size", "data_parallel_backend", "data_parallel_rank"), _ONE_ENGINE),
    **dict.fromkeys(("nnodes", "node_rank", "master_addr", "master_port"), _ONE_LINE),
}
_COMPACT = "structured_outputs_config.disable_any_whitespace"


def _arguments(value: Any) -> Any:  # noqa: ANN401 - raw user input
    if not isinstance(value, Mapping):
        raise fault("a table of arguments of vLLM is needed.")
    for name in value:
        if reason := PROTECTED.get(str(name).replace("-", "_")):
            raise fault(f"kgray sets {name}, because {reason}.")
        if not str(name).isidentifier():
            raise fault(f"{name!r} is no name of an argument: write it with underscores, as kv_cache_dtype.")
    form = value.get("structured_outputs_config", {})
    if not isinstance(form, Mapping):
        raise fault("structured_outputs_config is a table, such as { backend = 'xgrammar' }.")
    if "disable_any_whitespace" in form:
        raise fault(f"kgray sets {_COMPACT}, because some models write blanks without end: leave it out.")
    return value


@dataclass(frozen=True, slots=True, kw_only=True, config=CLOSED)
class EngineLimits:
    """Limits of an engine of vLLM: a table of the cluster's profile. vLLM's own depend on the card."""

    max_num_seqs: _Count = 256  # requests that run at once
    max_num_batched_tokens: _Count = 8192  # of one step
    max_model_len: Annotated[int, within(256, 10_000_000)] = 8192  # tokens of a prompt and its reply
    memory_share: Annotated[float, within(0.01, 1.0)] = 0.85  # of the card, for weights and KV cache
    tensor_parallel: _Count = 1  # cards of one engine: as many `gpus` of its pool are needed
    # The nodes of these cards: a single node; or as few nodes as possible; or many nodes.
    placement: Literal["STRICT_PACK", "PACK", "SPREAD"] = "STRICT_PACK"
    eager: StrictBool = False  # no compiled graphs: starts sooner, runs slower
    batch_invariant: StrictBool = False  # a reply does not depend on the batch: slower (docs/models.md)
    args: Annotated[Mapping[str, Any], BeforeValidator(_arguments)] = field(default_factory=dict)

    @property
    def cards(self) -> int:
        """The number of cards of one engine."""
        stages = self.args.get("pipeline_parallel_size", 1)
        return self.tensor_parallel * (stages if isinstance(stages, int) else 1)
