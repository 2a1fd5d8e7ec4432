"""The activations of a step, as many as are alive at once: what engines and plans leave room for."""

from collections.abc import Iterable

from torch import nn

from ridgeline.core.ops.backend import ReplayedSteps
from ridgeline.core.ops.work import LOGITS, StepSegment, Work
from ridgeline.price.price import Price
from ridgeline.price.priced_op import PricedOp

LOGIT_ROWS = 256
"""Requests whose logits a step has room for, where no engine has said how many."""


class ActivationPeak:
    """Most bytes of activations alive at once in a step of so many tokens and so many positions of encoders, by the
    requests whose logits it has: a plan asks for many counts of those, and what else runs is asked once.

    The widest op's inputs and outputs, beside three rows of the residual stream: what came into the block, what the
    block has made of it, and what went into its norm. For a gated MLP 2 x tokens x (3 x width + 3 x hidden) bytes in
    bf16, the figure of vLLM's memory profiler.
    """

    def __init__(self, price: Price, tokens: int, encoded: int = 0) -> None:
        self._tokens = tokens
        self._segment = StepSegment(tokens, tokens, encoded, encodes=encoded > 0)
        self._reaches = price.reaches
        self._heads = [priced for priced in price.ops if priced.space == LOGITS]
        self._others = _widest((priced for priced in price.ops if priced.space != LOGITS), self._work(1))

    def of(self, logit_rows: int) -> float:
        """With the logits of so many requests, each of which has a token in the step."""
        widest, residual = _widest(self._heads, self._work(min(self._tokens, logit_rows)))
        return max(widest, self._others[0]) + max(residual, self._others[1])

    def _work(self, logit_rows: int) -> Work:
        return Work.of([self._segment], self._reaches, logit_rows)


def activation_peak(price: Price, tokens: int, logit_rows: int = LOGIT_ROWS, encoded: int = 0) -> float:
    """The same of one step."""
    return ActivationPeak(price, tokens, encoded).of(logit_rows)


def replayed_bytes(steps: ReplayedSteps | None, model: nn.Module, price: Price, tokens: int) -> float:
    """Return the bytes that the replayed steps of a model hold between steps. tokens: the most that a step may have."""
    if steps is None:
        return 0
    held = steps.held_bytes(model)
    return activation_peak(price, *steps.largest(tokens)) if held is None else held


def _widest(ops: Iterable[PricedOp], work: Work) -> tuple[float, float]:
    """The most activations of a kernel of these ops, and of one that adds to the residual stream."""
    kernels = [launch for priced in ops for launch in priced.launches(work)]
    widest = max((k.cost.activation_bytes for k in kernels), default=0.0)
    sums = (k.cost.activation_bytes for k in kernels if k.name == "elementwise.add")  # two in, one out
    return widest, max(sums, default=0.0)
