"""The work of a release's code outside our ops: the FLOPs that PyTorch counts, and the bytes that must move.

Small modules have figures that are computed here by hand. Classes of transformers are held against PyTorch's own
counter of FLOPs, on the CPU, and against our own definitions of the same models.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache

from models.configs import CONFIGS
from ridgeline.core.models import Fields, build
from ridgeline.core.models.from_transformers.aten_costs import AtenTrace, traced
from ridgeline.core.models.from_transformers.aten_fusion import FusedKernel, fused_kernels
from ridgeline.core.models.from_transformers.cache_trace import watch_cache
from ridgeline.core.models.from_transformers.cost_fit import NotLinear, TraceSize
from ridgeline.core.models.from_transformers.not_modelled import ROW_SIZES, sequence_sizes, trace_kernels
from ridgeline.core.ops.cost import NO_COST, Cost
from ridgeline.core.ops.norm import RMSNorm
from ridgeline.core.ops.residual import ResidualAdd
from ridgeline.core.ops.work import CAUSAL, StepSegment, Work
from ridgeline.price.price import Price

BF16, ROWS, WIDTH = torch.bfloat16, 6, 10
NUMBERS = ROWS * WIDTH
ROW_BYTES = NUMBERS * BF16.itemsize


class Code(nn.Module):
    """A module of a release, which runs a function on rows [ROWS, WIDTH] and has one weight [WIDTH, WIDTH]."""

    def __init__(self, function: Callable[["Code", Tensor], Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(WIDTH, WIDTH, dtype=BF16, device="meta"))
        self.inner, self.act = nn.ModuleList(), nn.SiLU()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def kernels_of(function: Callable[[Code, Tensor], Any], *inner: nn.Module, rows: int = ROWS) -> list[FusedKernel]:
    code = Code(function)
    code.inner.extend(inner)
    with traced(code) as trace:
        code(torch.empty(rows, WIDTH, dtype=BF16))
    return fused_kernels(trace.record)


def only(kernels: list[FusedKernel]) -> FusedKernel:
    assert len(kernels) == 1, [kernel.key for kernel in kernels]
    return kernels[0]


# -- what a kernel moves ----------------------------------------------------------------------------------------------


def test_a_product_has_the_flops_of_torch_and_reads_its_weight_once() -> None:
    kernel = only(kernels_of(lambda code, x: functional.linear(x, code.weight)))
    assert kernel.key == ("", "Code", "matrix product", ("mm",))
    assert kernel.cost == Cost({"bf16": 2.0 * NUMBERS * WIDTH}, weight_bytes=200.0, activation_bytes=2.0 * ROW_BYTES)


def test_views_are_free() -> None:
    assert (
        kernels_of(lambda _, x: (x.view(3, -1).transpose(0, 1), x[:2], x.split(2), x.expand(2, -1, -1), x.to(BF16)))
        == []
    )


def test_an_intermediate_that_only_the_next_operation_reads_does_not_move() -> None:
    """Check that a gated activation, two operations of two modules, reads its inputs and writes a result."""
    kernel = only(kernels_of(lambda code, x: code.act(x) * x.view(ROWS, WIDTH)))
    assert kernel.key == ("", "Code", "elementwise", ("silu", "mul"))
    assert kernel.cost == Cost({"fp32": 5.0 * NUMBERS}, activation_bytes=2.0 * ROW_BYTES)


def test_an_intermediate_that_a_product_reads_moves() -> None:
    add, product = kernels_of(lambda code, x: (x + 1) @ code.weight)
    assert (add.cost.activation_bytes, product.cost.activation_bytes) == (2 * ROW_BYTES, 2 * ROW_BYTES)


class Copies(ResidualAdd):
    """An op of ours that another kernel cannot do."""

    def forward(self, x_TD: Tensor, y_TD: Tensor) -> Tensor:
        return torch.empty_like(x_TD)


def test_an_intermediate_that_an_op_of_ours_reads_moves() -> None:
    """Check that both results of the first addition count, because the op and the second addition read them."""

    def function(code: Code, x: Tensor) -> Tensor:
        y = x + 1
        return y + code.inner[0](y, x)

    first, second = kernels_of(function, Copies(WIDTH, BF16))
    assert (first.cost.activation_bytes, second.cost.activation_bytes) == (2 * ROW_BYTES, 3 * ROW_BYTES)


def test_an_op_that_a_kernel_can_do_does_not_read_its_input() -> None:
    """Check that a sum and its norm, which states that it reads the sum, move four rows together."""

    def function(code: Code, x: Tensor) -> Any:
        y = x + torch.empty_like(x)
        return y + code.inner[0](y)

    first, second = kernels_of(function, RMSNorm(WIDTH, 1e-6, BF16))
    assert first.cost.activation_bytes + 2 * ROW_BYTES == 4 * ROW_BYTES
    assert second.cost.activation_bytes == 3 * ROW_BYTES


def test_a_result_for_an_op_that_a_kernel_can_do_does_not_move() -> None:
    assert only(kernels_of(lambda code, x: code.inner[0](x * 2), RMSNorm(WIDTH, 1e-6, BF16))).cost.activation_bytes == 0


def test_what_an_op_of_ours_does_is_not_counted() -> None:
    class Slow(RMSNorm):
        def forward(self, x_xD: Tensor) -> Tensor:
            return torch.relu(x_xD @ x_xD.T @ x_xD)

    assert kernels_of(lambda code, x: code.inner[0](x), Slow(WIDTH, 1e-6, BF16)) == []


def test_other_calls_of_modules_read_a_result_from_memory() -> None:
    """Check that rotary angles are made once and read in each layer."""
    kernels = kernels_of(
        lambda code, x: code.inner[1](code.inner[0](x)), Code(lambda _, x: x.cos()), Code(lambda _, x: x + 1)
    )
    assert [kernel.cost.activation_bytes for kernel in kernels] == [2 * ROW_BYTES, 2 * ROW_BYTES]
    assert [kernel.key[0] for kernel in kernels] == ["inner.0", "inner.1"]


def test_halves_of_a_tensor_next_to_the_whole_are_read_once() -> None:
    """Check that half of each row is negated, exchanged with the other half and added, as a rotary embedding does."""
    kernel = only(kernels_of(lambda _, x: x * 2 + torch.cat((-x[:, 5:], x[:, :5]), -1)))
    assert kernel.cost.activation_bytes == 2 * ROW_BYTES


def test_halves_of_a_tensor_count_as_the_whole() -> None:
    assert only(kernels_of(lambda _, x: x[:, ::2] * x[:, 1::2])).cost.activation_bytes == 1.5 * ROW_BYTES
    assert only(kernels_of(lambda _, x: x[:, :5] * x[:, 5:])).cost.activation_bytes == 1.5 * ROW_BYTES


def test_a_norm_is_one_kernel() -> None:
    """Check that a norm with its casts and its weight reads and writes a row, with 4 FLOPs a number and some a row."""

    def norm(code: Code, x: Tensor) -> Tensor:
        y = x.float()
        return code.weight[0] * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)

    kernel = only(kernels_of(norm))
    assert kernel.key[2] == "reduction"
    assert kernel.cost == Cost({"fp32": 4.0 * NUMBERS + 2 * ROWS}, weight_bytes=20.0, activation_bytes=2.0 * ROW_BYTES)


def test_a_gather_reads_what_it_returns() -> None:
    kernel = only(kernels_of(lambda code, x: code.weight[torch.empty(3, dtype=torch.int64)]))
    assert kernel.key[2] == "index"
    assert (kernel.cost.weight_bytes, kernel.cost.activation_bytes) == (3 * 20, 3 * 20 + 3 * 8)


def test_a_loop_reads_a_weight_once() -> None:
    def loop(code: Code, x: Tensor) -> Tensor:
        for _ in range(3):
            x = x @ code.weight
        return x

    kernels = kernels_of(loop)
    assert [kernel.cost.weight_bytes for kernel in kernels] == [200, 0, 0]


def test_grouped_products_count_each_row_once() -> None:
    def grouped(_: Code, x: Tensor) -> Tensor:
        stack = torch.empty(4, 16, 24, dtype=BF16)
        return torch._grouped_mm(torch.empty(32, 16, dtype=BF16), stack, offs=torch.empty(4, dtype=torch.int32))

    kernel = only(kernels_of(grouped))
    assert kernel.key[2] == "matrix product"
    assert kernel.cost.flops == {"bf16": 2.0 * 32 * 16 * 24}


def test_attention_is_one_kernel_without_scores_in_memory() -> None:
    def attend(_: Code, x: Tensor) -> Tensor:
        q, k = torch.empty(1, 4, 5, 8, dtype=BF16), torch.empty(1, 2, 7, 8, dtype=BF16)
        return functional.scaled_dot_product_attention(q, k, k, enable_gqa=True)

    kernel = only(kernels_of(attend))
    assert kernel.cost == Cost({"bf16": 4.0 * 4 * 5 * 7 * 8}, activation_bytes=2.0 * (2 * 4 * 5 * 8 + 2 * 7 * 8))


def test_writing_into_a_part_of_a_tensor_counts_that_part() -> None:
    def write(_: Code, x: Tensor) -> Tensor:
        x[:2] = torch.empty(2, WIDTH, dtype=BF16)
        return x

    assert only(kernels_of(write)).cost.activation_bytes == 2 * 2 * WIDTH * 2


def test_memory_that_is_overwritten_is_not_filled_before() -> None:
    """Check that `zeros_like` reads no numbers, and writes only what nothing overwrites."""

    def gather_parts(_: Code, x: Tensor) -> Tensor:
        result = torch.zeros_like(x)
        result[:2] = x[2:4]
        return result

    copy, fill = sorted(kernels_of(gather_parts), key=lambda kernel: kernel.key[3] == ("zeros_like",))
    assert copy.cost.activation_bytes == 2 * 2 * WIDTH * BF16.itemsize
    assert fill.cost.activation_bytes == 0
    assert only(kernels_of(lambda _, x: torch.zeros_like(x))).cost.activation_bytes == ROW_BYTES


def test_triangular_systems_are_solved_in_the_kernel_that_makes_them() -> None:
    """Check that each of 6 rows takes a product with 6 others, half of which are zeros."""

    def solve(_: Code, x: Tensor) -> Tensor:
        right = x.float()
        return torch.linalg.solve_triangular(torch.empty(ROWS, ROWS), right * 2, upper=False) + right

    kernel = only(kernels_of(solve))
    assert kernel.cost.total_flops == ROWS * ROWS * WIDTH + 2 * NUMBERS
    assert kernel.cost.activation_bytes == ROW_BYTES + 4 * (ROWS * ROWS + NUMBERS)


@pytest.mark.parametrize(("dtype", "further"), [(torch.float32, NUMBERS * 2), (torch.float8_e4m3fn, 0)])
def test_an_op_of_ours_casts_its_result(dtype: torch.dtype, further: float) -> None:
    """Check that only the bytes by which the result becomes larger count."""
    norm = RMSNorm(WIDTH, 1e-6, BF16)
    assert only(kernels_of(lambda code, x: code.inner[0](x).to(dtype), norm)).cost.activation_bytes == further
    twice = kernels_of(lambda code, x: ((y := code.inner[0](x)).to(dtype), y.sum()), norm)  # y has to be in memory
    assert twice[0].cost.activation_bytes == ROW_BYTES + NUMBERS * dtype.itemsize


@pytest.mark.parametrize("before", [3, 8])
def test_new_rows_are_read_next_to_those_of_a_cache(before: int) -> None:
    """Check a convolution over cached and new rows, whose cost does not depend on how many are cached."""
    kept = torch.empty(1, WIDTH, before, dtype=BF16, device="meta")

    def convolve(code: Code, x: Tensor) -> Tensor:
        joined = torch.cat([kept, x.view(1, WIDTH, ROWS)], dim=-1)
        kept.copy_(joined[..., -before:])
        return functional.conv1d(joined, code.weight[:, None, :before], groups=WIDTH)[..., :ROWS]

    code = Code(convolve)
    with traced(code) as trace:
        trace.mark_cached(kept)
        code(torch.empty(ROWS, WIDTH, dtype=BF16))
    moved = {kernel.key[3]: kernel.cost.activation_bytes for kernel in fused_kernels(trace.record)}
    outputs = (ROWS + 1) * WIDTH * BF16.itemsize
    assert moved == {("cat",): 0, ("copy",): 0, ("convolution",): ROW_BYTES + outputs}


# -- linear functions of the size -------------------------------------------------------------------------------------


def fitted(function: Callable[[Code, Tensor], Any]) -> Any:
    code = Code(function)

    def run(size: TraceSize, trace: AtenTrace) -> None:
        code(torch.empty(size.tokens, WIDTH, dtype=BF16))

    return trace_kernels(code, run, ROW_SIZES, "bf16")


def test_the_cost_of_rows_is_a_line_through_traces() -> None:
    kernel = only(fitted(lambda code, x: functional.linear(x, code.weight)))
    assert kernel.fixed == Cost(weight_bytes=200.0)
    assert kernel.token == Cost({"bf16": 2.0 * WIDTH * WIDTH}, activation_bytes=4.0 * WIDTH)
    assert kernel.logit == NO_COST


def test_equal_kernels_of_a_module_are_several_calls_of_one() -> None:
    kernel = only(fitted(lambda code, x: (x + 1) @ code.weight + 1)[::2])
    assert (kernel.calls, kernel.token.activation_bytes) == (2, 4.0 * WIDTH)


def test_a_loop_over_positions_is_one_call() -> None:
    """Check that each position reads its row and the state, and writes the state."""

    def loop(code: Code, x: Tensor) -> Tensor:
        state = x[:1] @ code.weight
        for row in x:
            state = state @ code.weight + row
        return state

    kernels = fitted(loop)
    assert sum(kernel.token.flops.get("bf16", 0) * kernel.calls for kernel in kernels) == 2 * WIDTH * WIDTH
    assert sum(kernel.fixed.weight_bytes * kernel.calls for kernel in kernels) == 200


def test_work_that_is_not_linear_is_refused() -> None:
    with pytest.raises(NotLinear, match="the work of Code is not linear in the size of a step"):
        fitted(lambda _, x: x @ x.T)


# -- classes of transformers ------------------------------------------------------------------------------------------


def of_transformers(family: str, device: str, **changed: Any) -> Any:
    """Return the model of transformers for a family's small config: with random weights, or on meta."""
    fields = {**CONFIGS[family], **changed}
    config = transformers.AutoConfig.for_model(**{k: v for k, v in fields.items() if k != "torch_dtype"})
    config._attn_implementation = "eager"
    with torch.device(device):
        return getattr(transformers, fields["architectures"][0])(config).to(BF16).eval()


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text", "gpt2", "phi"])
def test_products_are_those_that_torch_counts(family: str) -> None:
    """Check that the FLOPs of a whole model without any op of ours are those of PyTorch's counter on the CPU."""
    model, ids_BT = of_transformers(family, "cpu"), torch.arange(9)[None]
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(ids_BT, use_cache=False)
    on_meta = of_transformers(family, "meta")
    with traced(on_meta) as trace:
        on_meta(torch.empty(1, 9, dtype=torch.int64), use_cache=False)
    kernels = fused_kernels(trace.record)
    counted = sum(kernel.cost.flops.get("bf16", 0.0) for kernel in kernels)
    assert counted == counter.get_total_flops() > 0


def kernels_of_class(model: Any) -> list[Any]:
    """Return the kernels of a causal model of transformers that has none of our ops."""

    def run(size: TraceSize, trace: AtenTrace) -> None:
        cache = DynamicCache(config=model.config)
        with trace.paused():
            if size.keys > size.tokens:
                model(torch.empty(1, size.keys - size.tokens, dtype=torch.int64), cache=cache)
        watch_cache(cache, trace)
        ids_BT = torch.empty(1, size.tokens, dtype=torch.int64)
        model(ids_BT, cache=cache, logits_to_keep=size.logits)

    return trace_kernels(model, run, sequence_sizes(), "bf16", ("attention",))


WORKS = {
    "prompt": lambda reaches: Work.of([StepSegment(40, 40)], reaches),
    "chunk": lambda reaches: Work.of([StepSegment(7, 40)], reaches),
    "decode": lambda reaches: Work.decode([40, 9, 23], reaches),
    "mixed": lambda reaches: Work.of([StepSegment(1, 40), StepSegment(12, 30), StepSegment(3, 5)], reaches),
}


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text"])
def test_a_class_without_our_ops_costs_what_our_definition_does(family: str) -> None:
    """Check that products and weights of a class that was only traced are those of our own definition.

    Activations are more, because nothing joins the products of the same rows.
    """
    changed = {"tie_word_embeddings": False} | ({"sliding_window": 64} if "sliding_window" in CONFIGS[family] else {})
    ours = Price(build(Fields({**CONFIGS[family], **changed, "torch_dtype": "bfloat16"}, "config.json")))
    kernels = kernels_of_class(of_transformers(family, "meta", **changed))
    for name, work_of in WORKS.items():
        work = work_of({CAUSAL, *ours.reaches})
        theirs = NO_COST
        for kernel in kernels:
            for axis, op in kernel.ops(CAUSAL):
                theirs += op.cost(work, axis) * kernel.calls
        own = ours.step(work)
        assert theirs.flops["bf16"] == own.flops["bf16"], name
        assert theirs.weight_bytes == own.weight_bytes
        assert own.activation_bytes < theirs.activation_bytes < 2 * own.activation_bytes
