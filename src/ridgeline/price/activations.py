"""The peak activation memory of a step, which engines and plans reserve."""

from collections.abc import Iterable

from torch import nn

from ridgeline.core.ops.backend import ReplayedSteps
from ridgeline.core.ops.work import LOGITS, StepSegment, Work
from ridgeline.price.price import Price
from ridgeline.price.priced_op import PricedOp

LOGIT_ROWS = 256
"""The default number of requests whose logits a step reserves memory for."""


class ActivationPeak:
    """The peak bytes of activations in a step of a given size, as a function of the number of requests with logits.

    A plan evaluates many numbers of logit rows, so all other ops are evaluated only once.

    The peak is the widest op's inputs and outputs plus three rows of the residual stream: the block's input, the
    block's sum so far, and the input of its norm. For a gated MLP this is 2 x tokens x (3 x width + 3 x hidden) bytes
    in bf16, the figure of vLLM's memory profiler.
    """

    def __init__(self, price: Price, tokens: int, encoded: int = 0) -> None:
        """Find the largest activations of any op in a step, except the ops over rows with logits, such as the LM head.

        Args:
            price: The priced model.
            tokens: The tokens of the step.
            encoded: The encoder positions of the step.
        """
        self._tokens = tokens
        self._segment = StepSegment(tokens, tokens, encoded, runs_encoder=encoded > 0)
        self._reaches = price.reaches
        self._heads = [priced for priced in price.ops if priced.space == LOGITS]
        self._others = _widest((priced for priced in price.ops if priced.space != LOGITS), self._work(1))

    def of(self, logit_rows: int) -> float:
        """Return the peak bytes of a step with logits for `logit_rows` requests, each with a token in the step."""
        widest, residual = _widest(self._heads, self._work(min(self._tokens, logit_rows)))
        return max(widest, self._others[0]) + max(residual, self._others[1])

    def _work(self, logit_rows: int) -> Work:
        return Work.of([self._segment], self._reaches, logit_rows)


def activation_peak(price: Price, tokens: int, logit_rows: int = LOGIT_ROWS, encoded: int = 0) -> float:
    """Return the peak bytes of activations that are alive at once in one step."""
    return ActivationPeak(price, tokens, encoded).of(logit_rows)


def replayed_bytes(steps: ReplayedSteps | None, model: nn.Module, price: Price, tokens: int) -> float:
    """Return the bytes that a model's captured or recorded decode steps hold between steps.

    Args:
        steps: The recorded steps; None if the backend records none.
        model: The model.
        price: The priced model.
        tokens: The maximum number of tokens per step.
    """
    if steps is None:
        return 0
    held = steps.held_bytes(model)
    return activation_peak(price, *steps.largest(tokens)) if held is None else held


def _widest(ops: Iterable[PricedOp], work: Work) -> tuple[float, float]:
    """Return the most activation bytes of any kernel of these ops, and of any that adds to the residual stream."""
    kernels = [launch for priced in ops for launch in priced.launches(work)]
    widest = max((k.cost.activation_bytes for k in kernels), default=0.0)
    sums = (k.cost.activation_bytes for k in kernels if k.name == "elementwise.add")  # two in, one out
    return widest, max(sums, default=0.0)
