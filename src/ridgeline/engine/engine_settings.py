"""EngineSettings: how an engine is set up."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ridgeline.engine.ranks import MOST_RANKS
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.speculation.config import Speculation


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How an engine is set up.

    kv_bytes: memory for keys and values; None for half of what is available, at most 4 GiB. memory_share: instead of
    kv_bytes, the share of the available memory that weights, a step, and keys and values take together. context:
    positions a sequence may have, where that is to be less than the model's. limits: what a step may hold. page_size:
    positions a KV page. prefix_cache: keep and share the pages of equal prefixes. grammar_bytes: of compiled grammars
    that are kept. chat_template: a file with one, instead of the model's own. reasoning: as in Texts. seed: where the
    seeds of requests that state none come from; None for anywhere. whole_context: refuse KV memory in which a sequence
    of the whole context has no room. adapters: folders of LoRA adapters by the names that requests choose them by.
    adapter_rank: the most that one of them may have. memory: bytes that are available to all of it, where other models
    are to have the rest; None for what the machine has free. weights: the format that plain weights are quantised to
    while they are loaded (int8, int4, int4-g64, int4-g32, fp8; int8+head for the embedding and the head too); None to
    leave them as they are stored. kv: the format that keys and values are kept in, int8 or fp8; None for the one that
    the model's config says. device: where it runs: cpu, cuda, cuda:N, or auto for a card where there is one. Of a card
    memory_share is that of all its memory, 0.9 where neither it nor kv_bytes is stated. eager: ask for every op of a
    step, which is made again otherwise where it can be. speculation: guess at next tokens, which steps verify; a
    draft model keeps its keys and values in the same memory. ranks: processes of this machine that share the model,
    each with a part of every matrix; memory and kv_bytes are for all of them.
    """

    kv_bytes: float | None = None
    memory_share: float | None = None
    context: int | None = None
    limits: Limits = field(default_factory=Limits)
    page_size: int = 16
    prefix_cache: bool = True
    grammar_bytes: int = 64 << 20
    chat_template: str | None = None
    reasoning: tuple[str, ...] | None = None
    seed: int | None = None
    whole_context: bool = False
    adapters: Mapping[str, str] = field(default_factory=dict)
    adapter_rank: int | None = None
    memory: float | None = None
    weights: str | None = None
    kv: str | None = None
    device: str = "cpu"
    eager: bool = False
    speculation: Speculation | None = None
    ranks: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.ranks <= MOST_RANKS:
            raise ValueError(f"tensor parallel over {self.ranks} processes; give 1 to {MOST_RANKS} (--tensor-parallel)")
        if self.memory_share is not None:
            if self.kv_bytes is not None:
                raise ValueError(
                    "memory for keys and values is given in bytes and as a share of memory; give one of them"
                )
            if not 0 < self.memory_share <= 1:
                raise ValueError(f"memory_share is {self.memory_share}; give a number over 0 and at most 1")
        if self.context is not None and self.context < 1:
            raise ValueError(f"the context is {self.context}; give at least 1 position")
