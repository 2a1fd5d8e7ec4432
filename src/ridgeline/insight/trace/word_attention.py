"""The attention of image patches to the words of the prompt, in one pass at a noise level.

Shapes: T patches of the image, M rows of its text, J rows that attention covers, H heads, D head dim.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.core.models.common.denoiser import JOINT, LATENTS
from ridgeline.core.models.common.priced_module import call_hooks
from ridgeline.core.ops.attention import Attention
from ridgeline.core.text import Tokenizer
from ridgeline.insight.trace.cross_attention import cross_weights
from ridgeline.insight.trace.denoise_step import DenoiseStep
from ridgeline.insight.trace.guidance_delta import by_line
from ridgeline.util.json_data import json_shape

_QUERIES = 256  # the number of queries whose weights are in memory at once


@json_shape("text", "mean", "weights")
@dataclass(frozen=True, slots=True)
class Word:
    """A word of the prompt with the attention that it received."""

    text: str
    weights: tuple[tuple[float, ...], ...]
    """The attention of each patch to the word, averaged over heads and selected layers.

    For a video, it is a sheet of frames.
    """

    @property
    def mean(self) -> float:
        """The mean attention to the word over all patches."""
        values = [value for line in self.weights for value in line]
        return sum(values) / len(values)


@dataclass(frozen=True, slots=True)
class WordAttention:
    """The attention of an image's patches to the words of the prompt.

    The means of the words, `template`, `patches` and `padding` add up to 1.
    """

    words: tuple[Word, ...]
    """The words with their attention, in the order of the prompt."""
    layer: int | None
    """The layer shown; None for the mean of all `layers`."""
    layers: int
    """The number of layers of the denoiser that attend to text."""
    template: float
    """The mean share of attention to the remaining tokens of the text."""
    patches: float
    """The mean share of attention to image patches."""
    padding: float
    """The mean share of attention to padding rows."""


@torch.inference_mode()
def word_attention(moment: DenoiseStep, layer: int | None = None) -> WordAttention:
    """Run the denoiser pass with the prompt and return the attention of its patches to the words.

    Args:
        moment: The request before a denoising step.
        layer: A layer among those that attend to text, counted from 0; None for all.

    Raises:
        ValueError: If the layer does not exist or the prompt has no words.
    """
    pipeline, plan = moment.pipeline, moment.plan
    denoiser, encoder = moment.denoiser, pipeline.encoder
    ids, empty = (encoder.unpadded(each) for each in (plan.token_ids[0], encoder.ids("")))
    words = words_of(encoder.tokenizer, ids, empty)
    if not words:
        raise ValueError("the prompt has no words for image patches to attend to; give a prompt with words")
    ops = [(path, op) for path, op in denoiser.ops_of(Attention) if _sees_text(op)]
    if layer is not None and not 0 <= layer < len(ops):
        raise ValueError(f"layer {layer} does not attend to the text; layers 0 to {len(ops) - 1} do")
    rows, count = denoiser.work(plan.geometry.latents[1:], moment.lengths((0,))).rows, plan.geometry.tokens
    kept: list[Tensor] = []

    def keep(_: str, op: Attention, inputs: tuple[Tensor, ...], __: Tensor) -> None:
        q_JHD, k_JHD = op.scored_queries_and_keys(inputs)
        first = len(q_JHD) - rows[LATENTS] if denoiser.text_first and op.attention_pattern.query_axis == JOINT else 0
        queries = torch.split(q_JHD[first : first + count], _QUERIES)
        kept.append(torch.cat([cross_weights(op, each_THD, k_JHD) for each_THD in queries]))

    prepared = moment.prepare((0,))
    with call_hooks(ops if layer is None else ops[layer : layer + 1], keep):
        moment.predict(prepared)
    mean_TJ = torch.stack(kept).mean(0)
    joint = ops[0][1].attention_pattern.query_axis == JOINT and ops[0][1].attention_pattern.kind != "cross"
    own = rows[LATENTS] if joint else 0
    text_TM = mean_TJ[:, : mean_TJ.shape[1] - own] if denoiser.text_first else mean_TJ[:, own:]
    start = mean_TJ.shape[1] - own if denoiser.text_first else 0
    patches = float(mean_TJ[:, start : start + (count if joint else 0)].sum(1).mean())
    grid = plan.geometry.grid
    found = tuple(Word(text, by_line(text_TM[:, list(places)].sum(1).view(grid))) for text, places in words)
    tokens = float(text_TM[:, : len(ids)].sum(1).mean())
    template = tokens - sum(word.mean for word in found)
    return WordAttention(found, layer, len(ops), template, patches, max(0.0, 1 - tokens - patches))


def _sees_text(op: Attention) -> bool:
    """Return whether an attention op has image patches among its queries and text among its keys."""
    return op.attention_pattern.kind == "cross" or op.attention_pattern.query_axis == JOINT


def words_of(tokenizer: Tokenizer, ids: Sequence[int], empty: Sequence[int]) -> list[tuple[str, range]]:
    """Return the words of a prompt, each with the range of its tokens.

    A word begins with a token that begins with a space, or that follows one ending in a space.

    Args:
        tokenizer: The text encoder's tokenizer.
        ids: The tokens of the prompt within its template.
        empty: The tokens of the empty prompt within its template, to tell the two apart.
    """
    begin = next((i for i, (a, b) in enumerate(zip(ids, empty, strict=False)) if a != b), min(len(ids), len(empty)))
    rest = min(len(ids), len(empty)) - begin
    backwards = zip(reversed(ids), reversed(empty), strict=False)
    tail = min(rest, next((i for i, (a, b) in enumerate(backwards) if a != b), rest))
    words: list[tuple[str, range]] = []
    apart = True
    for place in range(begin, len(ids) - tail):
        piece = tokenizer.token_bytes(ids[place], skip_special=False).decode("utf-8", "replace").replace("▁", " ")
        if piece.strip():
            if apart or piece[0].isspace():
                words.append((piece.strip(), range(place, place + 1)))
            else:
                text, places = words[-1]
                words[-1] = text + piece.strip(), range(places.start, place + 1)
        apart = not piece.strip() or piece[-1].isspace()
    return words
