"""Workload: what is asked of a model, and how fast."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests of `input` prompt tokens and `output` new ones.

    batch: how many of them side by side where no load is considered. ttft, tpot: the most seconds to the first token
    and a token after it, None for no target. step_tokens: positions that one step may run; a longer prompt takes
    several steps, and the activations of one are what memory must be kept for. page_size: positions a KV page.

    Raises ValueError naming the option.
    """

    input: int = 1024
    output: int = 256
    batch: int = 1
    ttft: float | None = None
    tpot: float | None = None
    step_tokens: int = 2048
    page_size: int = 16

    def __post_init__(self) -> None:
        for name in ("input", "output", "batch", "step_tokens", "page_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("ttft", "tpot"):
            target = getattr(self, name)
            if target is not None and not target > 0:
                raise ValueError(f"the {name} target is {target} s; it must be above 0")

    @property
    def tokens(self) -> int:
        """Positions that a request has when it ends."""
        return self.input + self.output

    @property
    def context(self) -> int:
        """Positions that a decode step sees on average, its own included.

        The prefill emits the first token; the other output - 1 steps see input + 1 to input + output - 1 positions.
        """
        return self.input + max(1, self.output // 2)
