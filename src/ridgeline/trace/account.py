"""The account of a run: what prefill and decode took, and the bandwidth that they reached."""

from dataclasses import dataclass

from ridgeline.engine.events import StepRecord
from ridgeline.roofline.price import Price


@dataclass(slots=True)
class Throughput:
    """Steps of one sort, added up. nbytes: weights and KV that they had to read and write."""

    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    nbytes: float = 0.0
    flops: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        """Positions run (prefill) or tokens sampled (decode) a second; 0 if nothing ran."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_second(self) -> float:
        """Compulsory bytes a second: what the memory system had to deliver at least; 0 if nothing ran."""
        return self.nbytes / self.seconds if self.seconds else 0.0

    @property
    def flops_per_second(self) -> float:
        """FLOPs a second; 0 if nothing ran."""
        return self.flops / self.seconds if self.seconds else 0.0


class Account:
    """Collects step records; a step in which some request ran several positions that were not guessed counts as
    prefill."""

    def __init__(self, price: Price) -> None:
        """price: of the model that runs."""
        self.price = price
        self.prefill, self.decode = Throughput(), Throughput()

    def add(self, record: StepRecord) -> None:
        """Add a step that ran."""
        phase = self.decode if record.decodes_only else self.prefill
        cost = self.price.step(record.work)
        phase.steps += 1
        phase.tokens += record.sampled if record.decodes_only else record.work.tokens
        phase.seconds += record.seconds
        phase.nbytes += cost.memory_bytes
        phase.flops += cost.total_flops
