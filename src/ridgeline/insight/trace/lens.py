"""The logit lens: what each layer would have said, had it been the last (nostalgebraist, "interpreting GPT", 2020).

The residual stream after a layer is put through the final norm and the head. The last row is what the model says.
"""

from dataclasses import dataclass

import torch

from ridgeline.core.models.common.model import Model
from ridgeline.core.text import Tokenizer
from ridgeline.insight.trace.anatomy import final_norm
from ridgeline.insight.trace.capture import ActivationCapture
from ridgeline.insight.trace.token_candidates import Token, likeliest


@dataclass(frozen=True, slots=True)
class LensRow:
    """What the stream says at one depth: its likeliest tokens, and where the model's own word stands among all
    (rank 1 is the first). after: "embedding" or the number of a layer.
    """

    after: str
    top: tuple[tuple[Token, float], ...]
    rank: int
    share: float


@dataclass(frozen=True, slots=True)
class Lens:
    """What the model says after `position`, and what it would have said earlier."""

    position: int
    word: Token
    rows: tuple[LensRow, ...]

    @property
    def settled(self) -> str:
        """From where on the model's own word stays first."""
        where = self.rows[-1].after
        for row in reversed(self.rows):
            if row.rank != 1:
                break
            where = row.after
        return where


@torch.inference_mode()
def lens(model: Model, captured: ActivationCapture, tokenizer: Tokenizer, count: int = 5) -> Lens:
    """Read the stream of a pass at every depth; `count`: tokens to keep of each."""
    stream_ND = torch.stack(captured.residual)
    shares_NV = model.head(final_norm(model).normalise(stream_ND)).softmax(-1)
    word = int(captured.logits_V.argmax())
    names = ["embedding", *(str(layer) for layer in range(len(captured.residual) - 1))]
    rows = []
    for name, shares_V in zip(names, shares_NV, strict=True):
        share = shares_V[word]
        rank = 1 + int((shares_V > share).sum())
        rows.append(LensRow(name, likeliest(shares_V, count, tokenizer), rank, float(share)))
    return Lens(captured.position, Token(word, tokenizer.piece(word)), tuple(rows))
