"""The memory that FlashAttention saves: the size of the score matrix, and a softmax that does not need the matrix.

Tiles of keys are processed one after the other. For each query three values are stored: the largest score so far, the
sum of e to the power of all scores minus the largest, and the corresponding mix of values. This is the online softmax
of Milakov and Gimelshein (arXiv:1805.02867), which FlashAttention uses (Dao et al., arXiv:2205.14135).
"""

import math

import torch
from torch import Tensor

from ridgeline.core.ops.attention import Attention
from ridgeline.learn.lab.cost_calculator import CostCalculator
from ridgeline.learn.lab.experiment import Experiment, ExperimentOutcome
from ridgeline.util.document.charts import Chart, Series
from ridgeline.util.document.elements import DocumentTable, TableRow, columns
from ridgeline.util.document.humanize import say

MODEL, GPU, TILES = "llama-3-8b", "h100-sxm", (1, 7, 64, 300)
LENGTHS = (512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072)
NEARER = {"registers": 132 * 256 * 1024, "shared memory": 132 * 228 * 1024}
"""The bytes of an H100 SXM's registers and shared memory, which are closer to its units than its caches.

They are 132 multiprocessors with 256 KiB of registers and 228 KiB of shared memory each (NVIDIA H100 Tensor Core GPU
Architecture, whitepaper of 2022, tables 2 and 3).
"""
PASSES = 4  # transfers of the scores: write, read, write as weights, read


def whole(q_QD: Tensor, k_LD: Tensor, v_LD: Tensor) -> Tensor:
    """Return causal attention with all scores at once: a matrix with a row for each query and a column for each key."""
    scores_QL = q_QD @ k_LD.T / math.sqrt(q_QD.shape[1])
    hidden_QL = torch.ones(scores_QL.shape, dtype=torch.bool).triu(1)
    return scores_QL.masked_fill(hidden_QL, float("-inf")).softmax(-1) @ v_LD


def in_tiles(q_QD: Tensor, k_LD: Tensor, v_LD: Tensor, tile: int) -> tuple[Tensor, int]:
    """Return causal attention computed one tile of keys at a time, and the maximum number of scores in memory."""
    queries = torch.arange(len(q_QD))[:, None]
    largest_Q1, sum_Q1 = torch.full((len(q_QD), 1), float("-inf")), torch.zeros(len(q_QD), 1)
    mix_QD, most = torch.zeros_like(q_QD), 0
    for start in range(0, len(k_LD), tile):
        keys_TD, values_TD = k_LD[start : start + tile], v_LD[start : start + tile]
        scores_QT = q_QD @ keys_TD.T / math.sqrt(q_QD.shape[1])
        scores_QT.masked_fill_(queries < torch.arange(start, start + len(keys_TD)), float("-inf"))
        most = max(most, scores_QT.numel())
        higher_Q1 = torch.maximum(largest_Q1, scores_QT.amax(1, keepdim=True))
        older_Q1, weights_QT = (largest_Q1 - higher_Q1).exp(), (scores_QT - higher_Q1).exp()
        sum_Q1 = sum_Q1 * older_Q1 + weights_QT.sum(1, keepdim=True)
        mix_QD = mix_QD * older_Q1 + weights_QT @ values_TD
        largest_Q1 = higher_Q1
    return mix_QD / sum_Q1, most


def score_bytes(op: Attention, tokens: int) -> int:
    """Return the bytes of the scores of one layer, in the dtype of its keys."""
    return op.spec.dtype.itemsize * op.heads * tokens**2


def row_bytes(op: Attention, tokens: int) -> int:
    """Return the bytes of the queries, keys, values and outputs of one layer."""
    return op.spec.dtype.itemsize * (2 * op.heads + 2 * op.spec.heads) * op.spec.k_dim * tokens


def run() -> ExperimentOutcome:
    """Run the experiment: attention with and without tiles on random numbers, and the cost for a large model."""
    draw = torch.Generator().manual_seed(1)
    q_QD, k_LD, v_LD = 2 * torch.randn(3, 601, 32, generator=draw)
    one_QD = whole(q_QD, k_LD, v_LD)
    tiled = {tile: in_tiles(q_QD, k_LD, v_LD, tile) for tile in TILES}
    apart = max(float((other_QD - one_QD).abs().max() / one_QD.abs().max()) for other_QD, _ in tiled.values())
    ledger = CostCalculator()
    gpu, layers = ledger.gpu(GPU), [op for _, op in ledger.model(MODEL).ops_of(Attention)]
    op = layers[0]
    scores = {n: score_bytes(op, n) for n in LENGTHS}
    passing = {n: PASSES * scores[n] / gpu.bandwidth for n in LENGTHS}
    flash = {n: ledger.prefill(MODEL, GPU, n).attention / len(layers) for n in LENGTHS}
    intensity = 2 * 2 * op.spec.k_dim / (PASSES * op.spec.dtype.itemsize)  # two products of 2 x width FLOPs per score
    near = NEARER | {f"{cache.name} cache": int(cache.nbytes) for cache in gpu.caches}
    fits = {name: math.isqrt(nbytes // score_bytes(op, 1)) for name, nbytes in near.items()}
    rows = [
        TableRow((f"{n:,}", say(scores[n], "B"), say(row_bytes(op, n), "B"), f"{passing[n] / flash[n]:.1f}"))
        for n in LENGTHS
    ]
    most = tiled[64][1] / one_QD.shape[0] ** 2
    return ExperimentOutcome(
        (
            (apart < 1e-5, f"the results differ by {apart:.0e}; tiles of 64 keys hold {most:.0%} of the scores"),
            (
                scores[8192] > 1e9 and scores[131_072] > 1e12,
                f"{say(scores[8192], 'B')} per layer at 8,192 tokens, {say(scores[131_072], 'B')} at 131,072",
            ),
            (max(fits.values()) < 1024, ", ".join(f"{name} {tokens:,} tokens" for name, tokens in fits.items())),
            (
                intensity < gpu.ridge("bf16") and all(passing[n] > 2 * flash[n] for n in LENGTHS[3:]),
                f"{intensity:.0f} FLOP/byte at every length, but the ridge is {gpu.ridge('bf16'):.0f}; at 8,192 "
                f"tokens {passing[8192] / flash[8192]:.1f} times as long as attention in tiles at best",
            ),
        ),
        (
            DocumentTable(columns("tokens", "scores", "q, k, v and output", "slowdown", words=()), (*rows,)),
            Chart("Minimum time for the attention of one layer of an 8B on an H100", "prompt tokens", "seconds", (
                Series("writing and reading the scores, four times in all", tuple(passing.items())),
                Series("attention in tiles", tuple(flash.items())),
            ), log_x=True, log_y=True),
        ),
        {"apart": apart, "scores": list(scores.values()), "passing": passing, "flash": flash},
    )  # fmt: skip


EXPERIMENT = Experiment(
    "flash",
    "Why do attention kernels not write the scores to memory?",
    (
        "Softmax in tiles of any size gives the same result and never holds all scores in memory.",
        "The scores of a layer grow with the square of the prompt: gigabytes at 8,192 tokens, a terabyte at 128k.",
        "The memory on an H100's chip (registers, shared memory, L2) holds the scores of a few hundred tokens.",
        "If scores are written to memory, attention is memory-bound at every length and takes several times as long.",
    ),
    run,
)
