"""Our kernels for cards one by one, in tiles of several sizes, beside torch's: which of them a card runs fastest.

Shapes of Llama-3.1-8B's layers in bf16. Calls go round several matrices, more than its caches hold, and are replayed as
a CUDA graph, so that nobody's Python is timed.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from ridgeline.backends.cuda.triton import (
    DecodeSequences,
    GpuStepSequences,
    PrefillSequences,
    TritonPagedAttention,
    product,
)
from ridgeline.backends.cuda.triton.triton_kernels import TritonKernels
from ridgeline.backends.kernel_support import AttentionScoring
from ridgeline.core.ops.matrix import MatrixSpec, QuantisedMatrix, matrix_of
from ridgeline.core.ops.matrix.operands import Operands
from ridgeline.core.ops.number_formats import weight_format_named

SHAPES = ((4096, 6144), (4096, 4096), (4096, 28672), (14336, 4096), (4096, 128256))
ROW_TILES = ((2, 1024), (2, 2048), (4, 1024), (4, 2048), (1, 2048))
PREFILL_TILES = ((128, 64, 8, 3), (128, 64, 4, 3))
DENSE_TILES = ((64, 64, 4, 3), (64, 64, 4, 2), (128, 64, 4, 2), (128, 64, 4, 3))
COLD = 400 << 20  # bytes that calls go round: what comes again is not in a cache any more


def seconds(calls: Sequence[Callable[[], object]]) -> float:
    """Median seconds of one of these calls, which are made one after the other."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    taken = []
    for _ in range(9):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        taken.append(start.elapsed_time(end) / 1e3 / len(calls))
    return statistics.median(taken[2:])


def bf16(*shape: int) -> Tensor:
    """Random numbers on the card."""
    return torch.randn(shape, device="cuda").mul_(0.05).bfloat16()


def products() -> Iterator[str]:
    """One row, by tile, beside cuBLAS."""
    for inputs, outputs in SHAPES:
        nbytes = 2 * inputs * outputs
        weights = [bf16(outputs, inputs) for _ in range(max(2, COLD // nbytes))]
        x = bf16(1, inputs)
        told = [f"{inputs} -> {outputs}: cuBLAS {_rate(nbytes, _each(weights, x, _by_torch))}"]
        for tile in ROW_TILES:
            product.ROW_TILES = (tile,)
            told.append(f"{tile} {_rate(nbytes, _each(weights, x, _by_us))}")
        yield "; ".join(told)


def _each(weights: Sequence[Tensor], x: Tensor, by: Callable[[Tensor, Tensor], object]) -> float:
    return seconds([lambda own=own: by(x, own) for own in weights])  # type: ignore[misc]


def _by_torch(x: Tensor, weight: Tensor) -> Tensor:
    return functional.linear(x, weight)


def _by_us(x: Tensor, weight: Tensor) -> Tensor:
    return product.few_products(x, Operands(weight, None), x.dtype)


def _rate(nbytes: float, taken: float) -> str:
    return f"{taken * 1e6:.1f} us {nbytes / taken / 1e9:.0f} GB/s"


def codes() -> Iterator[str]:
    """Matrices of codes: one row, a few, and widened for many."""
    cards, (inputs, outputs) = TritonKernels(), SHAPES[2]
    for name in ("int8", "int4", "fp8"):
        matrix = matrix_of(MatrixSpec(inputs, outputs, torch.bfloat16), weight_format_named(name))
        assert isinstance(matrix, QuantisedMatrix)
        made = matrix.random_parameters(torch.randn(1 << 20) * 0.02)
        for attribute, tensor in made.items():
            setattr(matrix, attribute, torch.nn.Parameter(tensor.cuda(), requires_grad=False))
        own = matrix.operands
        assert own is not None
        held = sum(tensor.nbytes for tensor in made.values())
        told = [f"{name} {inputs} -> {outputs}"]
        for rows in (1, 8, 16, 64, 65):
            x = bf16(rows, inputs)
            told.append(f"{rows} rows {_rate(held, seconds([lambda x=x, own=own: cards.products(x, (own,))] * 4))}")  # type: ignore[misc]
        yield "; ".join(told)


def attention() -> Iterator[str]:
    """Decodes by batch and context, and prefills, beside torch's SDPA over keys that lie together."""
    heads, kv_heads, dim, size = 32, 8, 128, 16
    pages = torch.randn(1 + 140_000 // size, 2, kv_heads, size, dim, device="cuda").bfloat16()
    given = heads, AttentionScoring("causal", 0, dim**-0.5, None, None), pages[:, 0], pages[:, 1], torch.bfloat16, None
    kernel = TritonPagedAttention(*given)
    for batch, context in ((1, 512), (1, 8192), (16, 1024), (64, 512), (256, 512)):
        entries = -(-context // size)
        table = (torch.randperm(len(pages) - 1, device="cuda")[: batch * entries] + 1).int()
        offset = torch.arange(batch, device="cuda").int() * entries
        length, row = torch.full_like(offset, context), torch.arange(batch, device="cuda").int()
        q, seen = bf16(batch, heads, dim), GpuStepSequences(table, DecodeSequences(offset, length, row), None)
        taken = seconds([lambda q=q, seen=seen: kernel.attend(seen, q)] * 4)  # type: ignore[misc]
        nbytes = batch * context * kv_heads * dim * 4
        yield f"decode {batch} of {context}, {kernel.splits(batch)} parts: {_rate(nbytes, taken)}"
    for length in (512, 1024, 2048, 8192):
        table = (torch.randperm(len(pages) - 1, device="cuda")[: length // size] + 1).int()
        one = torch.zeros(1, device="cuda").int()
        seen = GpuStepSequences(
            table, None, PrefillSequences(one, one + length, one, one + length, one, length, length, length)
        )
        q, kv = bf16(length, heads, dim), bf16(2, 1, kv_heads, length, dim)
        q_heads = q.transpose(0, 1)[None].contiguous()

        def by_torch(q: Tensor = q_heads, kv: Tensor = kv) -> Tensor:
            return functional.scaled_dot_product_attention(q, kv[0], kv[1], is_causal=True, enable_gqa=True)

        flops = 2.0 * heads * dim * length * (length + 1)
        told = [f"prefill {length}: SDPA {_speed(flops, seconds([by_torch]))}"]
        for tile in (*PREFILL_TILES, *DENSE_TILES):
            tried = Tiled(*given)
            tried.tile, tried.copies = tile, len(told) > len(PREFILL_TILES)
            taken = seconds([lambda q=q, seen=seen, by=tried: by.attend(seen, q)])  # type: ignore[misc]
            told.append(f"{'copied ' if tried.copies else ''}{tile} {_speed(flops, taken)}")
        yield "; ".join(told)


class Tiled(TritonPagedAttention):
    """Attention whose tiles of prompts are `tile`, as TritonPagedAttention._tile says them, over keys and values that
    are copied out of their pages or not."""

    tile, copies = PREFILL_TILES[0], False

    def _tile(self, several: PrefillSequences) -> tuple[int, int, int, int]:
        return self.tile

    def _copies(self, several: PrefillSequences) -> bool:
        return self.copies


def _speed(flops: float, taken: float) -> str:
    return f"{taken * 1e6:.0f} us {flops / taken / 1e12:.0f} TFLOP/s"


def small() -> Iterator[str]:
    """Norms and gates of one row, of some, and of many."""
    cards = TritonKernels()
    weight = bf16(4096)
    for rows in (1, 64, 2048):
        x, y, gate = bf16(rows, 4096), bf16(rows, 4096), bf16(rows, 28672)
        norm = seconds([lambda x=x, y=y: cards.norm(x, weight, 1e-5, from_one=False, added_ND=y)] * 4)  # type: ignore[misc]
        gates = seconds([lambda gate=gate: cards.gated(gate[:, :14336], gate[:, 14336:], "silu")] * 4)  # type: ignore[misc]
        yield f"{rows} rows: addition and norm {_rate(8 * x.numel(), norm)}; gate {_rate(3 * gate.numel(), gates)}"


def main() -> None:
    """Print a line for each."""
    if not torch.cuda.is_available():
        print("torch sees no CUDA device here: nothing was measured")
        return
    with torch.inference_mode():
        for lines in (codes, attention, small, products):
            for line in lines():
                print(line, flush=True)


if __name__ == "__main__":
    main()
