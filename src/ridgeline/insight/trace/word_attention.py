"""Whom the patches of a picture looked at: the words of its prompt, in one pass at a noise level.

Shapes: T patches of the picture, M rows of its text, J rows that attention sees, H heads, D head dim.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.core.models.common.denoiser import JOINT, LATENTS
from ridgeline.core.models.common.priced_module import listening
from ridgeline.core.ops.attention import Attention
from ridgeline.core.text import Tokenizer
from ridgeline.insight.trace.cross_attention import cross_weights
from ridgeline.insight.trace.denoise_step import DenoiseStep
from ridgeline.insight.trace.guidance_delta import by_line

_QUERIES = 256  # whose weights are in memory at once


@dataclass(frozen=True, slots=True)
class Word:
    """A word of the prompt. weights: the share of its attention that each patch gave to the word's tokens, a mean over
    heads and layers; by line, of a clip as a sheet of frames.
    """

    text: str
    weights: tuple[tuple[float, ...], ...]

    @property
    def mean(self) -> float:
        """The mean over the patches."""
        values = [value for line in self.weights for value in line]
        return sum(values) / len(values)


@dataclass(frozen=True, slots=True)
class WordAttention:
    """Words in the order of the prompt. layer: the one that was looked at, None for the mean of all `layers`.

    template, patches, padding: the shares of what patches gave on average to the rest of the text, to each other, and
    to rows that are no token; with those of the words they add up to 1.
    """

    words: tuple[Word, ...]
    layer: int | None
    layers: int
    template: float
    patches: float
    padding: float


@torch.inference_mode()
def word_attention(moment: DenoiseStep, layer: int | None = None) -> WordAttention:
    """Run the pass with the prompt and keep whom its patches looked at. layer: one of those that see text, counted from
    0; None for all.

    Raises ValueError for a layer that there is not, and a prompt without words.
    """
    pipeline, plan = moment.pipeline, moment.plan
    denoiser, encoder = moment.denoiser, pipeline.encoder
    ids, empty = (encoder.unpadded(each) for each in (plan.texts[0], encoder.ids("")))
    words = words_of(encoder.tokenizer, ids, empty)
    if not words:
        raise ValueError("the prompt has no words that a picture could look at; give one")
    ops = [(path, op) for path, op in denoiser.ops_of(Attention) if _sees_text(op)]
    if layer is not None and not 0 <= layer < len(ops):
        raise ValueError(f"layer {layer}: layers 0 to {len(ops) - 1} see the text")
    rows, count = denoiser.work(plan.geometry.latents[1:], moment.lengths((0,))).rows, plan.geometry.tokens
    kept: list[Tensor] = []

    def keep(_: str, op: Attention, inputs: tuple[Tensor, ...], __: Tensor) -> None:
        q_JHD, k_JHD = op.meeting(inputs)
        first = len(q_JHD) - rows[LATENTS] if denoiser.text_first and op.reach.space == JOINT else 0
        queries = torch.split(q_JHD[first : first + count], _QUERIES)
        kept.append(torch.cat([cross_weights(op, each_THD, k_JHD) for each_THD in queries]))

    prepared = moment.prepare((0,))
    with listening(ops if layer is None else ops[layer : layer + 1], keep):
        moment.predict(prepared)
    mean_TJ = torch.stack(kept).mean(0)
    joint = ops[0][1].reach.space == JOINT and ops[0][1].reach.kind != "cross"
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
    """Whether its queries are, among others, a picture's, and its keys, among others, a text's."""
    return op.reach.kind == "cross" or op.reach.space == JOINT


def words_of(tokenizer: Tokenizer, ids: Sequence[int], empty: Sequence[int]) -> list[tuple[str, range]]:
    """The words of a prompt, each with the places of its tokens.

    ids: of the prompt with all that a template puts around it; empty: the same of the empty prompt, by which the two
    are told apart. A word begins with a token that begins with a space, or that follows one which ends in a space.
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
