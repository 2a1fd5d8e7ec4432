"""Our kernels against float64 and torch, on awkward sizes; a row alone against itself in any batch, bit for bit; their
threads beside other threads, in a child of a fork, and where the system gives none, or no memory."""

import ctypes
import os
import platform
import resource
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from models.configs import CONFIGS
from ridgeline.backends import backend_of
from ridgeline.backends.cpu.cpu_attention import CpuPagedAttention, CpuStepSequences
from ridgeline.backends.cpu.cpu_backend import CpuBackend
from ridgeline.backends.cpu.cpu_coverage import fuses
from ridgeline.backends.cpu.library import Library, library
from ridgeline.backends.kernel_support import AttentionScoring
from ridgeline.core.models import Fields, build
from ridgeline.core.ops.activation import ActivatedProjections
from ridgeline.core.ops.backend import REFERENCE
from ridgeline.core.ops.matrix import MatrixSpec
from ridgeline.core.ops.matrix.operands import Operands
from ridgeline.core.ops.nonlinearity import ACTIVATIONS
from ridgeline.core.ops.norm import AddRMSNorm, RMSNorm
from ridgeline.core.ops.rotary import Rope
from support.kernels import SETS

pytestmark = pytest.mark.skipif(not SETS, reason="the kernels were not compiled")
SIZES = [(1, 1), (64, 64), (65, 67), (1024, 31), (1100, 130), (3072, 9), (40, 300), (1056, 6), (4096, 5)]
ROWS = [1, 2, 3, 5, 7, 16, 97, 130]
CPU = torch.device("cpu")
BOTH = [torch.float32, torch.bfloat16]
# Of the largest result: sums of so many products in fp32, and what rounding to bf16 takes away.
ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 2**-8}


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Random numbers, as many for a shape each time."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def off(ours: Tensor, exact: Tensor) -> float:
    """The largest difference, in parts of the largest result."""
    return float((ours.double() - exact).abs().max() / exact.abs().max())


def test_the_processor_has_its_instruction_sets() -> None:
    """Those that torch finds too; on ARM there is one."""
    found = {"AVX2": {"plain", "avx2"}, "AVX512": {"plain", "avx2", "avx512"}}
    expected = found.get(torch.backends.cpu.get_cpu_capability(), {"plain"})
    assert set(SETS) >= ({"neon"} if platform.machine() in ("aarch64", "arm64") else expected)


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
def test_products(kernels: Library, inputs: int, outputs: int, dtype: torch.dtype) -> None:
    """Two matrices at once, one with a bias, in fp32 and in the dtype of the rows, from rows that do not touch; nor do
    those of one matrix, as a rank has them."""
    first, second = normal(outputs, inputs, dtype=dtype), normal(outputs + 2, inputs + 5, dtype=dtype, seed=2)[:, 2:-3]
    bias = normal(outputs, dtype=dtype)
    for rows in ROWS:
        x_TI = normal(rows, inputs + 3, dtype=dtype, seed=rows)[:, :inputs]
        x, exact = x_TI.double(), (first.double(), second.double())
        wide = kernels.products(x_TI, [Operands(first, bias), Operands(second, None)], torch.float32)
        assert off(wide[0], x @ exact[0].T + bias.double()) < ROUNDING[torch.float32]
        assert off(wide[1], x @ exact[1].T) < ROUNDING[torch.float32]
        narrow = kernels.products(x_TI, [Operands(first, bias), Operands(second, None)])
        assert all(torch.equal(one, other.to(dtype)) for one, other in zip(narrow, wide, strict=True))


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
def test_a_row_does_not_depend_on_its_neighbours(
    kernels: Library, inputs: int, outputs: int, dtype: torch.dtype
) -> None:
    """Alone, in any batch, on one thread or two."""
    weight, x_TI = normal(outputs, inputs, dtype=dtype), normal(max(ROWS), inputs, dtype=dtype, seed=1)
    alone = [kernels.products(x_I[None], [Operands(weight, None)], torch.float32)[0] for x_I in x_TI]
    for rows in ROWS:
        for threads in (1, 2):
            kernels.threads(threads)
            (together,) = kernels.products(x_TI[:rows], [Operands(weight, None)], torch.float32)
            assert torch.equal(together, torch.cat(alone[:rows]))


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_gated_products(kernels: Library, activation: str, dtype: torch.dtype) -> None:
    """The op that fuses them, against what torch does in parts, in float64."""
    spec = MatrixSpec(70, 37, dtype, bias=True)
    op = ActivatedProjections({"gate": spec, "up": spec}, activation)
    assert fuses(op)
    for parameter in op.parameters():
        parameter.data.copy_(normal(*parameter.shape))
    gate, up = (op.matrix(name) for name in ("gate", "up"))
    for rows in ROWS:
        x_TI = normal(rows, 70, dtype=dtype, seed=rows)
        products = [functional.linear(x_TI.double(), m.weight.double(), m.bias.double()) for m in (gate, up)]
        exact = ACTIVATIONS[activation](products[0]) * products[1]
        ours = kernels.gated_products(x_TI, gate.operands, up.operands, activation)
        assert off(ours, exact) < 4 * ROUNDING[dtype]


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_gates_of_any_size(kernels: Library, activation: str) -> None:
    """Far to either side too, where fp32 has no number for the exponential."""
    x_N1 = torch.tensor([-1e4, -300, -150, -100, -89, -87, -20, -1, 0, 1, 20, 87, 89, 100, 150, 300, 1e4])[:, None]
    one, nothing = torch.ones(1, 1), torch.zeros(1, 1)
    ours = kernels.gated_products(x_N1, Operands(one, None), Operands(nothing, torch.ones(1)), activation)
    torch.testing.assert_close(ours, ACTIVATIONS[activation](x_N1), rtol=1e-6, atol=1e-6)


@pytest.mark.usefixtures("torch_only")  # what is expected would be ours too
@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("from_one", [False, True])
@pytest.mark.parametrize("width", [1, 7, 64, 129, 1024])
def test_norms(kernels: Library, width: int, dtype: torch.dtype, *, from_one: bool) -> None:
    """As torch rounds them: in bf16 each of two roundings may go the other way, where the sum of squares differs."""
    op = AddRMSNorm(width, 1e-6, dtype, from_one=from_one)
    op.weight.data.copy_(normal(width, seed=9))
    for rows in (1, 3, 300):
        x_TD, y_TD = normal(rows, width, dtype=dtype), normal(rows, width, dtype=dtype, seed=1)
        expected_x = x_TD + y_TD
        expected = RMSNorm.computed(op, expected_x.double().to(dtype))
        ours = kernels.norm(x_TD, op.weight, op.eps, from_one=from_one, added_ND=y_TD)
        assert torch.equal(x_TD, expected_x)
        torch.testing.assert_close(ours, expected, rtol=2**-6 if dtype == torch.bfloat16 else 1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("width", [1, 7, 129, 40_000])
def test_gather(kernels: Library, width: int, dtype: torch.dtype) -> None:
    """Any rows, in any order, on several threads; one that is not there is a row of NaN, not a fault."""
    table = normal(11, width, dtype=dtype)
    kernels.threads(2)
    for numbers in ([], [3], [10, 0, 10, 4], list(range(11))):
        assert torch.equal(kernels.gather(table, torch.tensor(numbers, dtype=torch.int64)), table[numbers])
    found = kernels.gather(table, torch.tensor([-1, 5, 11, 1 << 40]))
    assert torch.equal(found[1], table[5])
    assert found[[0, 2, 3]].isnan().all()


def test_angles(kernels: Library) -> None:
    """To the last bit or the one before it, at positions of the longest contexts; a row's do not depend on others."""
    frequencies = Rope(64, 5e5).frequencies()
    positions = torch.tensor([0, 1, 2, 77, 4095, 131_071, 1_000_000] * 5)
    kernels.threads(2)
    angles = (positions.float()[:, None, None] * frequencies).double()
    cos, sin = kernels.angles(positions, frequencies, 1.25)
    torch.testing.assert_close(cos.double(), 1.25 * angles.cos(), rtol=0, atol=2e-7)
    torch.testing.assert_close(sin.double(), 1.25 * angles.sin(), rtol=0, atol=2e-7)
    alone = [kernels.angles(positions[i : i + 1], frequencies, 1.25) for i in range(len(positions))]
    assert torch.equal(cos, torch.cat([own for own, _ in alone]))
    assert torch.equal(sin, torch.cat([own for _, own in alone]))


def test_what_would_be_read_wrongly_is_refused(kernels: Library) -> None:
    """Kernels go by addresses: another dtype, width or stride than they read is an error before they do."""
    x_TI, weight_OI = normal(4, 6), normal(5, 6)
    with pytest.raises(AssertionError, match="dtype of its rows"):
        kernels.products(x_TI, [Operands(weight_OI.bfloat16(), None)])
    with pytest.raises(AssertionError, match="as many columns"):
        kernels.products(x_TI, [Operands(weight_OI[:, 1:], None)])
    with pytest.raises(AssertionError, match="a number for each output"):
        kernels.products(x_TI, [Operands(weight_OI, normal(4))])
    with pytest.raises(AssertionError, match="the shape of the matrix that it gates"):
        kernels.gated_products(x_TI, Operands(weight_OI, None), Operands(weight_OI[:4], None), "silu")
    with pytest.raises(AssertionError, match="for each number of a row"):
        kernels.norm(x_TI, normal(5), 1e-6, from_one=False)
    with pytest.raises(AssertionError, match="the shape of the rows"):
        kernels.norm(x_TI, normal(6), 1e-6, from_one=False, added_ND=normal(3, 6))
    with pytest.raises(AssertionError, match="each row must be contiguous"):
        kernels.norm(x_TI.T, normal(4), 1e-6, from_one=False)
    with pytest.raises(AssertionError, match="must be contiguous"):
        kernels.gather(x_TI[:, 1:], torch.tensor([0]))
    with pytest.raises(AssertionError, match="int64"):
        kernels.gather(x_TI, torch.tensor([0], dtype=torch.int32))


# -- threads -----------------------------------------------------------------------------------------------------------


WEIGHT_OI, X_TI = normal(4096, 64), normal(3, 64, seed=1)


def work(kernels: Library) -> Tensor:
    """A product of several items."""
    return kernels.products(X_TI, [Operands(WEIGHT_OI, None)])[0]


def in_child(call: Callable[[], bool], room: int = 512 << 20, pieces: int = 0) -> int:
    """How a child of a fork ends that may take so many bytes more: with 0 where the call says yes; below 0 where a
    signal ended it, the alarm of one that hangs say. pieces: bytes of which malloc is to have none left, together: what
    earlier tests freed may lie in its hands."""
    malloc = ctypes.CDLL(None).malloc
    malloc.argtypes, malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(30)
            taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            _, hard = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (taken + room, hard))
            while pieces and malloc(pieces):
                pass
            os._exit(0 if call() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_calls_of_several_threads_at_once(kernels: Library) -> None:
    """One has the pool, the others do without; none sees the rows of another."""
    expected = work(kernels)
    kernels.threads(2)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: work(kernels), range(40)))
    assert all(torch.equal(one, expected) for one in found)


def test_a_child_of_a_fork_has_threads_of_its_own(kernels: Library) -> None:
    """Those of its parent are not there: nobody waits for them, with as many threads or with others."""
    kernels.threads(2)
    expected = work(kernels)

    def call() -> bool:
        same = torch.equal(work(kernels), expected)
        kernels.threads(3)
        return same and torch.equal(work(kernels), expected)

    assert in_child(call) == 0


def test_a_system_that_starts_no_more_threads(kernels: Library) -> None:
    """What threads there are compute it; the process does not end for want of others."""
    kernels.threads(2)
    expected = work(kernels)

    def call() -> bool:
        kernels.threads(64)
        return torch.equal(work(kernels), expected)

    assert in_child(call, room=20 << 20) == 0


@pytest.mark.parametrize("threads", [1, 2])
def test_a_system_that_gives_no_more_memory(kernels: Library, threads: int) -> None:
    """Six rows and more of 48 MB are packed at once: an error, whichever thread it meets, and the next call is as
    ever."""
    kernels.threads(threads)
    expected, wide = work(kernels), torch.ones(1, 12_000_003)
    x_TI, weight = wide.expand(97, -1), wide.expand(97, -1)

    def call() -> bool:
        work(kernels)
        with pytest.raises(MemoryError, match="working memory for a kernel"):
            kernels.products(x_TI, [Operands(weight, None)])
        return torch.equal(work(kernels), expected)

    assert in_child(call, room=20 << 20, pieces=48 << 20) == 0


def test_attention_over_no_keys(kernels: Library) -> None:
    """Queries of an empty input of an encoder get zeros: where there is no block of keys, there is none to cut at."""
    k_PKSD, v_PKSW = normal(1, 1, 16, 32), normal(1, 1, 16, 32)
    attention = CpuPagedAttention(
        kernels, 1, AttentionScoring("cross", 0, 1.0, None, None), k_PKSD, v_PKSW, 32, k_PKSD.dtype
    )
    sequences, nothing = CpuStepSequences([0, 3], [0], [0], [[]]), torch.empty(0, dtype=torch.int64)

    def call() -> bool:
        kernels.threads(2)
        return torch.equal(attention.attend(sequences, normal(3, 1, 32), None, None, nothing), torch.zeros(3, 1, 32))

    assert in_child(call) == 0


def test_what_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other dtypes, devices and columns go to torch; `off` and a set that is not there are as they say."""
    monkeypatch.delenv("RIDGELINE_KERNELS", raising=False)
    library.cache_clear()
    backend = backend_of(CPU)
    assert isinstance(backend, CpuBackend)
    assert not isinstance(backend_of(torch.device("meta")), CpuBackend)
    half = build(Fields(CONFIGS["llama"] | {"torch_dtype": "float16"}, "test"))
    backend.bind(half)
    assert {op.backend for _, op in half.ops()} == {REFERENCE}
    backend.noted = calls = []
    assert torch.equal(backend.linear(normal(3, 2).T, normal(4, 3)), functional.linear(normal(3, 2).T, normal(4, 3)))
    assert len(calls) == 0
    backend.linear(normal(2, 3), normal(4, 3))
    assert len(calls) == 1
    backend.noted = None
    library.cache_clear()
    monkeypatch.setenv("RIDGELINE_KERNELS", "off")
    assert not isinstance(backend_of(CPU), CpuBackend)
    library.cache_clear()
    monkeypatch.setenv("RIDGELINE_KERNELS", "sse9")
    with pytest.raises(ValueError, match="sse9"):
        library()
    library.cache_clear()
