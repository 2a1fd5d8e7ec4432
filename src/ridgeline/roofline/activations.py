"""The activations of a step, as many as are alive at once: what engines and plans leave room for."""

from ridgeline.ops.work import Segment, Work
from ridgeline.roofline.price import Price

LOGIT_ROWS = 256
"""Requests whose logits a step has room for, where no engine has said how many."""


def activation_peak(price: Price, tokens: int, logit_rows: int = LOGIT_ROWS, encoded: int = 0) -> float:
    """Most bytes of activations alive at once in a step of so many tokens, with the logits of so many requests, and so
    many positions of encoders.

    The widest op's inputs and outputs, beside three rows of the residual stream: what came into the block, what the
    block has made of it, and what went into its norm. For a gated MLP 2 x tokens x (3 x width + 3 x hidden) bytes in
    bf16, the figure of vLLM's memory profiler.
    """
    work = Work.of([Segment(tokens, tokens, encoded, encodes=encoded > 0)], price.reaches, min(tokens, logit_rows))
    kernels = [kernel for priced in price.ops for kernel in priced.kernels(work)]
    widest = max(kernel.cost.activation_bytes for kernel in kernels)
    sums = (k.cost.activation_bytes for k in kernels if k.name == "elementwise.add")  # two in, one out
    residual = max(sums, default=0.0)
    return widest + residual
