"""The logit lens: what each layer would predict if it were the last (nostalgebraist, "interpreting GPT", 2020).

The residual stream after each layer goes through the final norm and the LM head. The last row is the model's own
prediction.
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
    """The prediction from the residual stream at one depth."""

    after: str
    """The depth: `embedding`, or the number of the layer."""
    top: tuple[tuple[Token, float], ...]
    """The most likely tokens with their probabilities."""
    rank: int
    """The rank of the model's own prediction at this depth; 1 is the first."""
    share: float
    """The probability of the model's own prediction at this depth."""


@dataclass(frozen=True, slots=True)
class Lens:
    """The model's prediction after `position`, and what earlier layers would predict."""

    position: int
    word: Token
    rows: tuple[LensRow, ...]

    @property
    def settled(self) -> str:
        """The depth from which the model's own prediction stays first."""
        where = self.rows[-1].after
        for row in reversed(self.rows):
            if row.rank != 1:
                break
            where = row.after
        return where


@torch.inference_mode()
def lens(model: Model, captured: ActivationCapture, tokenizer: Tokenizer, count: int = 5) -> Lens:
    """Apply the logit lens to a forward pass at every depth, with the `count` most likely tokens each."""
    stream_ND = torch.stack(captured.residual)
    shares_NV = model.head(final_norm(model).normalise(stream_ND)).softmax(-1)
    word = int(captured.logits_V.argmax())
    names = ["embedding", *(str(layer) for layer in range(len(captured.residual) - 1))]
    rows = []
    for name, shares_V in zip(names, shares_NV, strict=True):
        share = shares_V[word]
        rank = 1 + int((shares_V > share).sum())
        rows.append(LensRow(name, likeliest(shares_V, count, tokenizer), rank, float(share)))
    return Lens(captured.position, Token(word, tokenizer.printable_token(word)), tuple(rows))
