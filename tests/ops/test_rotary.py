"""Rotary embedding: frequencies and magnitudes as transformers computes them, rotation as complex numbers do."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig, Phi3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding
from transformers.utils import logging

from ridgeline.core.models import Fields
from ridgeline.core.models.common.rope import RopeDefaults, read_rope
from ridgeline.core.ops.rotary import Rope, RotaryTable, rotate

logging.set_verbosity_error()  # it warns of numbers that do not fit together, which is what is asked of it here
CONTEXT = 4096
EVEN = st.integers(1, 64).map(lambda half: 2 * half)
THETAS = st.floats(2.0, 1e7)
FACTORS = st.floats(1.0, 64.0)
ORIGINAL = st.sampled_from([32, 64, 2048, 8192, 32768])


def scaling(kind: str, **numbers: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Parameters of one rope type."""
    always = {"rope_type": st.just(kind), "rope_theta": THETAS, "factor": FACTORS}
    return st.fixed_dictionaries(always, optional=numbers)


LINEAR = scaling("linear")
LLAMA3 = scaling("llama3").flatmap(
    lambda fixed: st.tuples(st.floats(0.5, 4.0), st.floats(0.5, 8.0), ORIGINAL).map(
        lambda n: (
            fixed | {"low_freq_factor": n[0], "high_freq_factor": n[0] + n[1], "original_max_position_embeddings": n[2]}
        )
    )
)
YARN = scaling(
    "yarn",
    original_max_position_embeddings=ORIGINAL,
    beta_fast=st.floats(4.0, 64.0),
    beta_slow=st.floats(0.25, 3.0),
    attention_factor=st.floats(0.1, 2.0),
    truncate=st.booleans(),
)


@given(head_dim=EVEN, parameters=LINEAR | LLAMA3 | YARN)
def test_scalings_are_transformers(head_dim: int, parameters: dict[str, Any]) -> None:
    """Frequencies and the factor on cos and sin, for any parameters of the three scalings."""
    values = {"head_dim": head_dim, "max_position_embeddings": CONTEXT, "rope_parameters": parameters}
    ours = read_rope(Fields(values, "config.json"), head_dim)
    config = LlamaConfig(**(values | {"rope_parameters": dict(parameters)}))
    frequencies, magnitude = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config)
    assert torch.allclose(ours.frequencies(), frequencies, rtol=2e-6, atol=0)
    assert ours.magnitude == pytest.approx(magnitude, rel=1e-12)


@given(head_dim=EVEN, theta=THETAS, old=st.booleans())
def test_no_scaling_is_transformers(head_dim: int, theta: float, old: bool) -> None:
    """The base alone, in the old spelling and the new one."""
    values: dict[str, Any] = {"head_dim": head_dim, "max_position_embeddings": CONTEXT}
    values |= {"rope_theta": theta} if old else {"rope_parameters": {"rope_type": "default", "rope_theta": theta}}
    ours = read_rope(Fields(values, "config.json"), head_dim)
    theirs = LlamaRotaryEmbedding(LlamaConfig(**values))
    assert torch.allclose(ours.frequencies(), theirs.inv_freq, rtol=1e-6, atol=0)
    assert ours.magnitude == theirs.attention_scaling == 1


@given(head_dim=st.integers(4, 64), share=st.floats(0.3, 1.0))
def test_partial_rotation_is_transformers(head_dim: int, share: float) -> None:
    """Phi-3 rotates the first entries of each head only; the exponents go by how many."""
    if int(head_dim * share) % 2:
        return
    values: dict[str, Any] = {"head_dim": head_dim, "max_position_embeddings": CONTEXT, "partial_rotary_factor": share}
    ours = read_rope(Fields(values, "config.json"), head_dim, RopeDefaults(partial=True))
    theirs = Phi3RotaryEmbedding(Phi3Config(**values))
    assert ours.dim == 2 * len(theirs.inv_freq)
    assert torch.allclose(ours.frequencies(), theirs.inv_freq, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("values", "theta", "context"),
    [
        ({"rope_theta": 5.0, "rope_scaling": {"type": "yarn", "factor": 2.0}}, 5.0, CONTEXT),
        ({"rope_theta": 5.0, "rope_scaling": {"type": "yarn", "factor": 2.0, "rope_theta": 7.0}}, 7.0, CONTEXT),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}}, 10_000.0, 64),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0}, "original_max_position_embeddings": 64}, 10_000.0, 64),
        (
            {
                "rope_scaling": {"type": "yarn", "factor": 2.0},
                "rope_parameters": {"rope_type": "linear", "factor": 9.0, "rope_theta": 3.0},
            },
            10_000.0,
            CONTEXT,
        ),
    ],
)
def test_where_the_numbers_are_looked_for(values: dict[str, Any], theta: float, context: int) -> None:
    """In rope_scaling, else rope_parameters, else beside them; as transformers does."""
    values = {"head_dim": 16, "max_position_embeddings": CONTEXT, **values}
    ours = read_rope(Fields(values, "config.json"), 16)
    assert ours.theta == theta
    assert ours.scaling.original_context == context
    frequencies, _ = ROPE_INIT_FUNCTIONS["yarn"](LlamaConfig(**values))
    assert torch.allclose(ours.frequencies(), frequencies, rtol=1e-6, atol=0)


@given(half=st.integers(1, 8), rest=st.integers(0, 5), theta=THETAS, seed=st.integers(0, 99))
def test_rotation_is_multiplication_by_complex_numbers(half: int, rest: int, theta: float, seed: int) -> None:
    """Entry i and entry i + dim / 2 are one complex number, turned by position x frequency i; the rest stays."""
    g = torch.Generator().manual_seed(seed)
    rope = Rope(2 * half, theta)
    positions = torch.randint(0, 5000, (6,), generator=g)
    q, k = (torch.randn(6, heads, 2 * half + rest, generator=g) for heads in (3, 2))
    turned = [rotate(x, RotaryTable(rope)(positions)) for x in (q, k)]
    for before, after in zip((q, k), turned, strict=True):
        angle_T1F = (positions[:, None, None].float() * rope.frequencies()).double()
        number = torch.complex(before[..., :half].double(), before[..., half : 2 * half].double())
        number = number * torch.polar(torch.ones_like(angle_T1F), angle_T1F)
        reference = torch.cat([number.real, number.imag, before[..., 2 * half :].double()], dim=-1)
        assert torch.allclose(after.double(), reference, atol=2e-5)


def test_only_differences_of_positions_matter() -> None:
    """The point of it: a query at 7 and a key at 3 meet as 104 and 100 do."""
    rope = Rope(16, 10_000.0)
    table = RotaryTable(rope)
    q, k = torch.randn(2, 1, 1, 16, generator=torch.Generator().manual_seed(0))

    def product(query_at: int, key_at: int) -> float:
        turned_q, turned_k = (rotate(x, table(torch.tensor([at]))) for x, at in ((q, query_at), (k, key_at)))
        return float((turned_q * turned_k).sum())

    assert product(7, 3) == pytest.approx(product(104, 100), abs=1e-4)
    assert product(7, 3) != pytest.approx(product(8, 3), abs=1e-3)
