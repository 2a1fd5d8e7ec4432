"""The functions through traces with a state: what a price leaves out of them, and what it must not."""

from collections.abc import Callable

import pytest

from ridgeline.core.models.from_transformers.aten_fusion import FusedKernel
from ridgeline.core.models.from_transformers.cost_fit import FittedKernel, NotLinear, TraceSize, fit
from ridgeline.core.models.from_transformers.not_modelled import sequence_sizes
from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.work import RECURRENT

CHUNK = 48
SIZES = sequence_sizes(CHUNK)


def fitted(cost: Callable[[TraceSize], Cost]) -> FittedKernel:
    """Return the one kernel through traces that have this cost."""
    key = ("layers.0", "Mixer", "other", ("mul",))
    traces = [(size, [FusedKernel(key, cost(size))]) for size in SIZES]
    (kernel,) = fit(traces, "bf16", ("attention", "recurrence", "chunks"))
    return kernel


def chunks(size: TraceSize) -> int:
    """Return the number of chunks that a recurrence runs; none in a decode step, which has code of its own."""
    return 0 if size.tokens == 1 else size.tokens // CHUNK


def test_joining_all_chunks_in_one_product_is_priced_as_passing_a_state() -> None:
    """Check (c + 1)^2 joined states: 2 c + 1 of them stay."""
    kernel = fitted(lambda size: Cost({"fp32": 1000.0 * (chunks(size) + 1) ** 2}))
    assert kernel.basis == "chunks"
    for count in (1, 2, 7):
        tokens = count * CHUNK
        pairs = tokens * (RECURRENT.size + 1) // 2
        flops = (cost.total_flops for cost in (kernel.fixed, kernel.token * tokens, kernel.pair * pairs))
        assert sum(flops) == pytest.approx(1000 * (2 * count + 1))


def test_copies_before_a_convolution_are_not_priced() -> None:
    """Check rows that are read and written once, and once more if there is a state."""
    kernel = fitted(lambda size: Cost(activation_bytes=64.0 * size.tokens * (1 + (size.keys > size.tokens > 1))))
    assert kernel.basis == "chunks"
    assert kernel.token == Cost(activation_bytes=pytest.approx(64))
    assert kernel.key.activation_bytes == pytest.approx(0)


@pytest.mark.parametrize("share", [0.49, 0.51])
def test_at_most_half_of_a_chunk_is_left_out(share: float) -> None:
    def cost(size: TraceSize) -> Cost:
        return Cost({"fp32": 100.0 * ((1 - share) * chunks(size) + share * chunks(size) ** 2)})

    if share < 0.5:
        assert fitted(cost).basis == "chunks"
    else:
        with pytest.raises(NotLinear):
            fitted(cost)


def test_attention_in_a_window_is_not_left_out() -> None:
    """Check pairs with all positions of the pass and seven before it, which are the same terms as those left out."""
    width, window = 64, 7
    with pytest.raises(NotLinear):
        fitted(
            lambda size: Cost({"bf16": 4.0 * width * size.tokens * (size.tokens + window * (size.keys > size.tokens))})
        )


def test_work_on_rows_before_a_pass_is_not_left_out() -> None:
    """Check FLOPs that rows have only after others: a copy has none."""
    with pytest.raises(NotLinear):
        fitted(lambda size: Cost({"fp32": 100.0 * size.tokens + 3.0 * size.tokens * (size.keys > size.tokens > 1)}))
