"""Our attention over pages against torch's over whole sequences, and its results against themselves, bit for bit."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ridgeline.backends.cpu.cpu_attention import rotate
from ridgeline.backends.cpu.cpu_coverage import attends
from ridgeline.backends.cpu.library import Library
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.rotary import Rope, RotaryTable
from ridgeline.core.ops.rotary import rotate as rotate_by_torch
from ridgeline.core.ops.work import CAUSAL, CROSS, AttentionPattern
from support.kernels import SETS, back_to_the_best
from support.paged import Case, Inputs, Native, by_torch, close, sequence, steps

pytestmark = pytest.mark.skipif(not SETS, reason="the kernels were not compiled")


def run(kernels: Library, case: Case, sequences: Sequence[Inputs], cuts: Sequence[Sequence[int]]) -> list[Tensor]:
    """As `steps`, by our kernels."""
    return steps(Native(kernels), case, sequences, cuts)


REACHES = [
    CAUSAL,
    AttentionPattern("window", 1),
    AttentionPattern("window", 100),
    AttentionPattern("chunked", 48),
    AttentionPattern("chunked", 300),
    CROSS,
]
CASES = st.builds(
    Case,
    heads=st.sampled_from([(1, 1), (2, 1), (1, 2), (3, 3), (2, 4), (1, 5), (1, 7), (1, 16)]),
    dim=st.sampled_from([1, 4, 6, 20, 32, 40, 64, 72, 96, 128]),
    width=st.sampled_from([1, 4, 10, 32, 40, 48, 64, 80, 96, 128]),
    reach=st.sampled_from(REACHES),
    softcap=st.sampled_from([None, None, 2.0, 50.0]),
    sinks=st.booleans(),
    scale=st.sampled_from([None, 0.3]),
    page_size=st.sampled_from([1, 4, 16, 64]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    stored=st.sampled_from(["", "int8", "fp8"]),
)
CUTS = st.lists(st.sampled_from([1, 1, 2, 7, 33, 64, 150]), min_size=1, max_size=4)


@settings(max_examples=100)
@given(case=CASES, cuts=st.lists(CUTS, min_size=1, max_size=4), encoded=st.integers(1, 200), latent=st.booleans())
def test_attention_is_torchs(case: Case, cuts: list[list[int]], encoded: int, latent: bool) -> None:
    """Every reach, all that an op says of itself and whatever keys and values are stored as, for first chunks, later
    ones and decodes of several sequences."""
    if latent:
        case = replace(case, latent=True, width=min(case.width, case.dim))
    lengths = [sum(cut) for cut in cuts]
    cross = case.reach.kind == "cross"
    sequences = [
        sequence(case, encoded + n if cross else length, n, queries=length) for n, length in enumerate(lengths)
    ]
    theirs = [by_torch(case, own) for own in sequences]
    for name in SETS:
        ours = run(Library(name=name), case, sequences, cuts)
        assert all(close(own, reference) for own, reference in zip(ours, theirs, strict=True)), name
    back_to_the_best()


WHOLE = 300
PLAIN = Case(heads=(2, 3), dim=128, width=128)
BITWISE = {
    "fp32": PLAIN,
    "bf16": replace(PLAIN, dtype=torch.bfloat16),
    "window": replace(PLAIN, reach=AttentionPattern("window", 77), dtype=torch.bfloat16),
    "chunked": replace(PLAIN, reach=AttentionPattern("chunked", 90)),
    "awkward": Case(heads=(1, 7), dim=72, width=20, softcap=5.0, sinks=True, page_size=4, dtype=torch.bfloat16),
    "int8": replace(PLAIN, stored="int8", dtype=torch.bfloat16),
    "int8 window": replace(PLAIN, stored="int8", dim=40, reach=AttentionPattern("window", 77), page_size=4),
    "fp8": replace(PLAIN, stored="fp8", dim=80, width=96, sinks=True),
    "latent": Case(heads=(1, 16), dim=72, width=64, latent=True, dtype=torch.bfloat16),
}


@pytest.mark.parametrize("name", BITWISE)
def test_a_row_is_the_same_however_it_is_run(name: str, kernels: Library) -> None:
    """Bit for bit: alone, in a batch, in chunks of 1, 7 and 64, and by two threads, which cut a step differently."""
    case = BITWISE[name]
    own, others = sequence(case, WHOLE, 0), [sequence(case, length, length) for length in (1, 40, 200)]
    (alone,) = run(kernels, case, [own], [[WHOLE]])
    for size in (1, 7, 64):
        chunks = [min(size, WHOLE - start) for start in range(0, WHOLE, size)]
        for threads in (1, 2):
            kernels.threads(threads)
            assert torch.equal(run(kernels, case, [own], [chunks])[0], alone)
    first, *_ = run(kernels, case, [own, *others], [[WHOLE], *([len(other)] for other in others)])
    assert torch.equal(first, alone)


def test_two_threads_share_one_long_sequence(kernels: Library) -> None:
    """A decode step over one KV head is cut at blocks of keys, and its parts put together again."""
    case = Case(heads=(1, 2), dim=64, width=64)
    own = sequence(case, 1000, 0)
    kernels.threads(1)
    (alone,) = run(kernels, case, [own], [[990, *[1] * 10]])
    kernels.threads(2)
    (shared,) = run(kernels, case, [own], [[990, *[1] * 10]])
    assert torch.equal(shared, alone)
    assert close(shared, by_torch(case, own))


@pytest.mark.parametrize("stored", ["", "int8", "fp8"])
def test_nan_is_not_hidden(stored: str, kernels: Library) -> None:
    """A query that is not a number gives no number, and no other row is touched; nor by keys that it does not see."""
    case = replace(PLAIN, heads=(1, 1), stored=stored)
    own = sequence(case, 40, 0)
    (sound,) = run(kernels, case, [own], [[40]])
    own.q_LHD[17] = math.nan
    (ours,) = run(kernels, case, [own], [[40]])
    assert ours[17].isnan().all()
    others = [row for row in range(40) if row != 17]
    assert torch.equal(ours[others], sound[others])
    own.k_LKD[20] = math.nan
    (ours,) = run(kernels, case, [own], [[40]])
    assert torch.equal(ours[:17], sound[:17])
    assert ours[20:].isnan().all()


def test_what_would_be_read_wrongly_is_refused(kernels: Library) -> None:
    """Kernels go by addresses: fewer rows, other heads or another format than a step and its pages say."""
    case = replace(PLAIN, heads=(1, 2))
    own = sequence(case, 5, 0)
    for name, less in (("q_LHD", own.q_LHD[:, :1]), ("k_LKD", own.k_LKD[..., 1:]), ("v_LKW", own.v_LKW.bfloat16())):
        with pytest.raises(AssertionError, match=r"new (keys|values) (have shape|must have)|queries have shape"):
            run(kernels, case, [replace(own, **{name: less})], [[5]])
    q_THD, angles = own.q_LHD, RotaryTable(Rope(case.dim, 10_000.0))(torch.arange(5))
    with pytest.raises(AssertionError, match="the same rows"):
        rotate(kernels, (q_THD, q_THD[1:]), angles, 0)
    with pytest.raises(AssertionError, match="angles must be fp32"):
        rotate(kernels, (q_THD,), (angles[0].double(), angles[1].double()), 0)


def test_exponentials(kernels: Library) -> None:
    """Two keys weigh 1 and e^x: to 3e-7 of that, down to where fp32 ends."""
    case = Case(heads=(2000, 1), dim=1, width=1, scale=1.0)
    x_N = torch.cat([torch.linspace(-90, 0, 1500), -torch.logspace(-8, 1, 500)])
    own = Inputs(torch.ones(2, 2000, 1), torch.stack([torch.zeros(2000), x_N])[..., None], None)
    shares = []
    for values in ((1.0, 0.0), (0.0, 1.0)):
        v_LKW = torch.tensor(values)[:, None, None].expand(2, 2000, 1)
        (out,) = run(kernels, case, [replace(own, v_LKW=v_LKW)], [[2]])
        shares.append(out[1, :, 0].double())
    exact = x_N.double().exp()
    held = exact > 1e-37
    error = (shares[1] / shares[0] / exact - 1).abs()
    assert error[held].max() < 3e-7
    assert (shares[1][~held] < 1.2e-37).all()


def test_soft_caps(kernels: Library) -> None:
    """A capped score is cap x tanh(score / cap): its exponential is, to 1e-6 of the cap."""
    cap = 20.0
    case = Case(heads=(2000, 1), dim=1, width=1, scale=1.0, softcap=cap)
    x_N = torch.cat([-torch.logspace(-4, 2, 1000), torch.linspace(-60, 0, 1000)])
    own = Inputs(torch.ones(2, 2000, 1), torch.stack([torch.zeros(2000), x_N])[..., None], None)
    v_LKW = torch.tensor([0.0, 1.0])[:, None, None].expand(2, 2000, 1)
    (out,) = run(kernels, case, [replace(own, v_LKW=v_LKW)], [[2]])
    share = out[1, :, 0].double()
    assert ((share / (1 - share)).log() - cap * (x_N.double() / cap).tanh()).abs().max() < 1e-6 * cap


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("dim", "turned", "start"), [(128, 128, 0), (80, 32, 0), (24, 6, 10), (2, 2, 0)])
def test_rotation_is_torchs(dim: int, turned: int, start: int, dtype: torch.dtype, kernels: Library) -> None:
    """Whole heads, a part of each, and what follows a latent's value, of rows that lie apart in memory."""
    g = torch.Generator().manual_seed(0)
    positions_T = torch.tensor([0, 1, 2, 70, 1000, 5000, 5001, 5002, 9, 40_000])
    angles = RotaryTable(Rope(turned, 10_000.0))(positions_T)
    both = torch.randn(10, 7, dim, generator=g).to(dtype)
    inputs = both[:, :5], both[:, 5:]
    for ours, x_THD in zip(rotate(kernels, inputs, angles, start), inputs, strict=True):
        theirs = rotate_by_torch(x_THD, angles, start)
        assert ours.dtype == dtype
        assert torch.allclose(ours, theirs, rtol=2**-7 if dtype == torch.bfloat16 else 1e-6, atol=1e-6)


def test_what_the_kernels_do_not_take() -> None:
    """Biases of positions, other formats, and what is nowhere kept."""
    assert attends(PLAIN.op())
    spec = PLAIN.op().spec
    assert not attends(Attention(0, 6, spec, bias=lambda distance_xL: distance_xL * 0.1))
    assert not attends(Attention(0, 6, replace(spec, dtype=torch.float16)))
    assert not attends(Attention(0, 6, replace(spec, reach=AttentionPattern("full"))))
