"""Attention with its score matrix in memory and without."""

import pytest

from ridgeline.price.device import Cache
from ridgeline.price.plan.score_matrix import score_rows
from support.planned import LLAMA_3_8B, TINY_SLIDING, card, case


def test_the_score_matrix_is_what_attention_moves() -> None:
    """Llama-3-8B by hand: 32 layers, 32 heads, causal pairs; scores written, read, written and read in bf16."""
    rows = {row.prompt: row for row in score_rows(case(LLAMA_3_8B))}
    assert list(rows) == [512, 2048, 8192]
    for prompt, row in rows.items():
        pairs = prompt * (prompt + 1) / 2
        assert row.score_bytes == 32 * 32 * pairs * 4 * 2
        assert row.flops == pytest.approx(32 * (32 * pairs * 4 * 128 + prompt * (32 + 8) * 128 * 3))
        scores = row.score_bytes / 2.039e12
        streamed = row.nbytes / 2.039e12
        assert row.fused == pytest.approx(max(32 * 32 * pairs * 4 * 128 / 312e12, streamed), rel=0.02)
        assert row.unfused == pytest.approx(scores + streamed, rel=0.02)
    assert rows[8192].unfused > 2 * rows[8192].fused


def test_scores_that_a_cache_holds_cost_less() -> None:
    plain, cached = (
        score_rows(case(LLAMA_3_8B, card(caches=caches)))[0] for caches in ((), (Cache("L2", 64 * 2**20, 1e13),))
    )
    assert cached.score_bytes == plain.score_bytes
    assert cached.unfused < plain.unfused / 2


def test_windows_mask_pairs() -> None:
    rows = score_rows(case(TINY_SLIDING))
    full, windowed = (case(c) for c in (TINY_SLIDING | {"use_sliding_window": False}, TINY_SLIDING))
    assert score_rows(full)[-1].score_bytes > 1.5 * score_rows(windowed)[-1].score_bytes == 1.5 * rows[-1].score_bytes
