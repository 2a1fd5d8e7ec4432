"""The settings with which an engine is built."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ridgeline.engine.ranks import MOST_RANKS
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.speculation.config import Speculation


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The settings with which an engine is built: memory, limits, device, weight formats and features."""

    kv_bytes: float | None = None
    """Bytes of memory for the KV cache, over all ranks; None to choose a size from the available memory.

    On the CPU the default is half of the memory that weights and a step leave free, at most 4 GiB. On a GPU it is all
    that `memory_share` leaves.
    """
    memory_share: float | None = None
    """The share of memory that weights, a step and the KV cache take together, over 0 and at most 1.

    On the CPU it is a share of the available memory and replaces `kv_bytes`. On a GPU it is a share of the GPU's whole
    memory, by default 0.9. `kv_bytes` and `memory_share` exclude each other.
    """
    context: int | None = None
    """The maximum number of positions of a sequence, if it is to be less than the model's; None for the model's."""
    rope: str | None = None
    """The scaling of rotary positions that extends the model's context, such as `yarn:4`; None for the config's own."""
    limits: Limits = field(default_factory=Limits)
    """The limits of a step: tokens, requests and chunk size."""
    page_size: int = 16
    """The number of positions in a KV page."""
    prefix_cache: bool = True
    """Whether the engine keeps the KV pages of prompts and shares them among requests with equal prefixes."""
    grammar_bytes: int = 64 << 20
    """The maximum number of bytes of compiled grammars to cache for structured outputs."""
    chat_template: str | None = None
    """The path of a chat template file that replaces the model's own; None for the model's own."""
    reasoning: str | None = None
    """The format of the model's reasoning, by the name of a reasoning parser of vLLM (reasoning_format.py).

    "none" if the model writes none; None to take the format from the model's chat templates.
    """
    seed: int | None = None
    """The seed from which the seeds of requests without one are drawn; None for a random one."""
    whole_context: bool = False
    """Whether to refuse a KV cache that cannot hold one sequence of the whole context.

    If its size is not given, it first grows to as much as half of the free memory.
    """
    adapters: Mapping[str, str] = field(default_factory=dict)
    """The LoRA adapters to load: the name that requests use, and the folder."""
    adapter_rank: int | None = None
    """The maximum rank of a LoRA adapter; None for no limit."""
    memory: float | None = None
    """Bytes of memory available to this engine, over all ranks; None for all that the machine has free.

    Set it if other models need the rest of the memory.
    """
    weights: str | None = None
    """The weight format to which plain weights are quantised while they load; None to keep the stored format.

    One of int8, int4, int4-g64, int4-g32, fp8 and w8a8. With +head, as in int8+head, the embedding and the head are
    quantised, too.
    """
    kv: str | None = None
    """The format of the KV cache, int8 or fp8; None for the one in the model's config."""
    device: str = "cpu"
    """The device to run on: cpu, cuda, cuda:N, or auto for a GPU if there is one."""
    eager: bool = False
    """Whether to launch every op of every step, instead of replaying captured decode steps when possible."""
    speculation: Speculation | None = None
    """The speculative decoding to use, or None. The KV cache of a draft model comes out of the same memory."""
    ranks: int = 1
    """The number of processes on this machine that share the model by tensor parallelism.

    Each holds a part of every matrix.
    """

    def __post_init__(self) -> None:
        if not 1 <= self.ranks <= MOST_RANKS:
            raise ValueError(f"tensor_parallel is {self.ranks}; give 1 to {MOST_RANKS}")
        if self.memory_share is not None:
            if self.kv_bytes is not None:
                raise ValueError("kv_memory and memory_share both limit the KV memory: give only one of them")
            if not 0 < self.memory_share <= 1:
                raise ValueError(f"memory_share is {self.memory_share}: give a number above 0 and at most 1")
        if self.context is not None and self.context < 1:
            raise ValueError(f"context is {self.context}; give at least 1 position")
