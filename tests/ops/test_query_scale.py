"""Scales of queries by position, against transformers' functions and by hand."""

import math

import pytest
import torch
from transformers.models.ministral3.modeling_ministral3 import get_llama_4_attn_scale

from ridgeline.core.ops.query_scale import QueryScale, QueryScaleTable, ScaledQueries
from ridgeline.core.ops.work import StepSegment, Work

POSITIONS = torch.tensor([0, 5, 6, 7, 13, 14, 41, 16_383, 16_384, 262_143, 10_485_759])


@pytest.mark.parametrize(("slope", "span"), [(0.1, 16_384), (0.5, 7), (3.0, 1)])
def test_scales_are_ministrals(slope: float, span: int) -> None:
    """One span after the other, the borders of spans included."""
    theirs = get_llama_4_attn_scale(POSITIONS[None], slope, span)[0, 0]
    ours = QueryScaleTable(QueryScale(slope, span))(POSITIONS)
    assert ours.shape == (len(POSITIONS), 1, 1)
    assert torch.allclose(ours[:, 0], theirs, rtol=1e-6, atol=0)


def test_positions_counted_from_one_are_llama_4s() -> None:
    """The first span is a position shorter; every number by itself, in float64 of Python."""
    ours = QueryScaleTable(QueryScale(0.1, 7, offset=1))(POSITIONS).flatten().tolist()
    assert ours == pytest.approx([1 + 0.1 * math.log1p((at + 1) // 7) for at in POSITIONS.tolist()], rel=1e-6)
    assert ours[1] == 1 < ours[2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_queries_are_scaled_row_by_row(dtype: torch.dtype) -> None:
    """All of a row by one number, rounded once; on meta the shape alone."""
    q_THD = torch.randn(3, 2, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    scale_T11 = torch.tensor([1.0, 1.3, 2.7])[:, None, None]
    op = ScaledQueries(10, dtype)
    scaled_THD = op(q_THD, scale_T11)
    for row, scale in enumerate(scale_T11.flatten().tolist()):
        assert torch.equal(scaled_THD[row], (q_THD[row].float() * scale).to(dtype))
    assert op(q_THD.to("meta"), scale_T11.to("meta")).shape == q_THD.shape


def test_costs_by_hand() -> None:
    """Of 3 rows: 2 heads of 5 numbers, read and written in bf16, and a scale each of 5 operations."""
    work = Work.of([StepSegment(3, 7)])
    queries = ScaledQueries(10, torch.bfloat16).cost(work)
    assert (queries.total_flops, queries.activation_bytes, queries.weight_bytes) == (30, 2 * 30 * 2 + 3 * 4, 0)
    table = QueryScaleTable(QueryScale(0.1, 8)).cost(work)
    assert (table.total_flops, table.activation_bytes) == (15, 12)
