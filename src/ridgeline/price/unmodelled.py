"""The share of a model's bytes in operations that are not modelled: those of which only the shapes are known.

A model that is traced from its class has such operations: elementwise arithmetic, copies, and whatever else is no op.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ridgeline.core.models.common.model import Model
from ridgeline.core.models.from_transformers.aten_table import FUSED
from ridgeline.core.ops.op import NOT_MODELLED
from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.price.error_interval import Kind
from ridgeline.price.price import Price

PROMPT = 2048
"""The tokens of the prompt that stands for prefills; fewer if the context is shorter."""
BATCH = 256
"""The sequences of the decode step that stands for decodes.

With fewer, weights are more of the bytes, so that the share is smaller.
"""
_NOTICED = 0.005  # the least share of a step's bytes that a text mentions


@dataclass(frozen=True, slots=True)
class UnmodelledBytes:
    """The shares of a step's bytes in operations that are not modelled, by category such as `elementwise`."""

    prefill: Mapping[str, float]
    """The shares of a prompt's bytes."""
    decode: Mapping[str, float]
    """The shares of a decode step's bytes; empty for a model without a head."""
    tokens: int = PROMPT
    """The tokens of the prompt, and of each sequence of the decode step."""

    @property
    def fused(self) -> dict[Kind, float]:
        """The shares that an engine may avoid by fusing operations into other kernels, by kind of figure.

        Figures that consist of prefills and decodes have the larger of the two shares.
        """
        prefill, decode = (
            sum(share for category, share in shares.items() if category in FUSED)
            for shares in (self.prefill, self.decode)
        )
        both = max(prefill, decode)
        return {"prefill": prefill, "decode": decode, "static": both, "load": both}

    def describe(self) -> str:
        """Return a clause that lists the operations, without those of tiny shares; "" if there are no others."""
        steps = {
            f"a prompt's bytes ({self.tokens:,} tokens)": self.prefill,
            f"a decode step's bytes ({BATCH} sequences)": self.decode,
        }
        listed = [f"{shown} of {step}" for step, shares in steps.items() if (shown := _listed(shares))]
        return f"not modelled: {'; '.join(listed)}; counted by the shapes of their tensors" if listed else ""


def _listed(shares: Mapping[str, float]) -> str:
    """Return the shares that are not tiny, the largest first, as in `elementwise 11.6%, copy 2.0%`."""
    noticed = [category for category, share in shares.items() if share >= _NOTICED]
    return ", ".join(f"{category} {shares[category]:.1%}" for category in sorted(noticed, key=lambda it: -shares[it]))


ALL_MODELLED = UnmodelledBytes({}, {})
"""The shares of a model that is made of ops with costs of their own."""


def unmodelled_bytes(model: Model, price: Price) -> UnmodelledBytes:
    """Return the shares of bytes in operations of a model that are not modelled."""
    length = min(PROMPT, model.context)
    prefill = _shares(price, Work.of([StepSegment(length, length)], price.reaches))
    decode = _shares(price, Work.decode([length] * BATCH, price.reaches)) if model.has_head else {}
    return UnmodelledBytes(prefill, decode, length)


def _shares(price: Price, work: Work) -> dict[str, float]:
    """Return the share of a step's bytes in operations that are not modelled, by category."""
    total, shares = price.step(work).total_bytes, dict[str, float]()
    for priced in price.ops:
        if priced.op.kind == NOT_MODELLED:
            share = priced.cost(work).total_bytes * priced.count / total
            shares[priced.op.traced] = shares.get(priced.op.traced, 0.0) + share
    return shares
