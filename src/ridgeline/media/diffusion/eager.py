"""The price of a denoiser pass without fusion, in which each op other than a product or attention is its own kernel.

As in diffusers without torch.compile, each of these ops reads and writes memory. torch.compile removes most of those
bytes; the costs that our ops state are the remaining ones. The bytes are properties of diffusers' classes (eager.toml,
written by benchmarks/eager.py); their seconds are computed as for any kernel.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.op import Launch
from ridgeline.core.ops.work import Work
from ridgeline.price.device import Device
from ridgeline.price.op_time import OpTime, op_seconds
from ridgeline.price.plan.request_phases import ClassRow, Estimate, PhasePrice
from ridgeline.price.price import Price

_FUSED = ("elementwise", "norm", "embedding")
"""The classes of this package's kernels that do the work of diffusers' unfused ops."""


@dataclass(frozen=True, slots=True)
class Unfused:
    """The ops of a denoiser pass that are neither a matrix product nor attention, as diffusers runs them."""

    kernels: tuple[tuple[int, int, int], ...]
    """The ops by kind: (bytes moved for any image, additional bytes per token of latents, number of ops)."""

    def nbytes(self, tokens: int) -> float:
        """Return the bytes that all unfused ops of a pass move for an image of `tokens` tokens of latents."""
        return float(sum((fixed + each * tokens) * count for fixed, each, count in self.kernels))

    def seconds(self, device: Device, tokens: int) -> tuple[float, float]:
        """Return the bound and the expected seconds of all unfused ops of a pass, run one after the other."""
        bound = expected = 0.0
        for fixed, each, count in self.kernels:
            cost = Cost(activation_bytes=float(fixed + each * tokens))
            time = op_seconds(cost, (Launch("elementwise", "", 1, cost),), device, cost.activation_bytes)
            bound += time.bound * count
            expected += time.expected * count
        return bound, expected


def unfused(release: str) -> Unfused | None:
    """Return the unfused ops of a pass of a catalogue release; None if they were not recorded."""
    entry = _table().get(release)
    return None if entry is None else Unfused(tuple((a, b, n) for a, b, n in entry["kernels"]))


def unfused_phase(
    once: PhasePrice, price: Price, device: Device, works: Sequence[Work], ops: Unfused, tokens: int
) -> PhasePrice:
    """Return the price of passes as diffusers runs them without torch.compile.

    Args:
        once: Price of the same passes with fusion.
        price: Price of the denoiser.
        device: Device of the passes.
        works: Work of each pass.
        ops: Unfused ops of one pass.
        tokens: Tokens of latents on each GPU.
    """
    own_bound, own_expected = (len(works) * each for each in ops.seconds(device, tokens))
    products = _products(price, device, works)
    nbytes = len(works) * ops.nbytes(tokens)
    bound, expected = products.bound + own_bound, products.expected + own_expected
    kept = [row for row in once.classes if row.kind not in _FUSED]
    rest = Estimate(0.0, bound, expected + once.host) - Estimate(
        0.0, sum(row.bound for row in kept), once.host + sum(row.expected for row in kept)
    )
    classes = [replace(row, share=row.bound / bound) for row in kept]
    classes.append(ClassRow("elementwise", 0.0, nbytes, rest.bound, rest.expected, rest.bound / bound, "memory"))
    fused = sum(row.nbytes for row in once.classes if row.kind in _FUSED)
    return replace(
        once,
        seconds=Estimate(once.seconds.floor, bound, expected + once.host),
        activation_bytes=once.activation_bytes - fused + nbytes,
        classes=tuple(sorted(classes, key=lambda row: -row.bound)),
    )


def _products(price: Price, device: Device, works: Sequence[Work]) -> OpTime:
    """Return the bound and the expected seconds of the matrix products and the attention of all passes."""
    bound = expected = 0.0
    for work in works:
        step = price.price_step(device, work)
        for row in step.rows:
            kernels = [k for k in row.priced.launches(work) if k.name.split(".")[0] not in _FUSED]
            if kernels:
                time = op_seconds(row.cost, kernels, device, step.working_set)
                bound += time.bound * row.priced.count
                expected += time.expected * row.priced.count
    return OpTime(bound, expected, "")


@cache
def _table() -> Mapping[str, Mapping[str, list[list[int]]]]:
    text = resources.files("ridgeline.media.diffusion").joinpath("eager.toml").read_text(encoding="utf-8")
    table: Mapping[str, Mapping[str, list[list[int]]]] = tomllib.loads(text)
    return table
