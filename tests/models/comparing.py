"""Transformers' model beside ours from the folder that it wrote: how far apart they are, and what matters to them."""

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from models.parity_cases import ParityCase
from ridgeline.core.checkpoint.folder import open_checkpoint
from ridgeline.core.checkpoint.weight_loader import load_tensors
from ridgeline.core.models import Fields, build, family_of
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.priced_module import PricedModule

TOLERANCE = 1e-5  # of the largest
GAP = 1e-3  # between the two largest logits: below it rounding may decide
SHARE_WITH_GAP = 0.95
MATTERS = 1e-3  # of the largest: a hundred times the tolerance


@dataclass(frozen=True)
class Subject:
    """One case: transformers' model, and ours from the folder it wrote."""

    case: ParityCase
    folder: Path
    theirs: PreTrainedModel
    ours: Model

    def without(self) -> Model:
        """Ours with the same weights, but without the setting that the case is about."""
        values = json.loads((self.folder / "config.json").read_text(encoding="utf-8"))
        text = values.get("text_config")
        if text is None:
            values |= self.case.without
        else:
            values["text_config"] = text | self.case.without
        other = Fields(values, "config.json")
        model = build(other)
        load_tensors(model, open_checkpoint(self.folder), family_of(other))
        return model


def off(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference, of the largest of theirs."""
    return float((ours - theirs).abs().max() / theirs.abs().max())


def apart(ours: Tensor, theirs: Tensor) -> float:
    """As `off`, in fp32, of two of one shape."""
    assert ours.shape == theirs.shape
    return off(ours.float(), theirs.float())


def near_ties(reference_TV: Tensor, output: Sequence[int], what: str) -> int:
    """Assert that each token is the likeliest of its logits where the two best are clearly apart; count the rest."""
    best = reference_TV.topk(2, dim=-1)
    clear = best.values[:, 0] - best.values[:, 1] > GAP
    differs = (best.indices[:, 0] != torch.tensor(output)) & clear
    assert not differs.any(), f"{what}: token {int(differs.nonzero()[0])} of the output differs"
    return len(output) - int(clear.sum())


def changes_of_parameters(
    model: PricedModule, given: Callable[[], Tensor], skipped: Collection[str] = ()
) -> Iterator[tuple[str, float]]:
    """Each parameter's name, and by how much what the model gives changes while it is another: turned about, not
    halved, which a norm behind it would undo. skipped: names of those that are left alone."""
    before = given()
    for name, parameter in model.named_parameters():
        if name not in skipped:
            kept = parameter.data
            parameter.data = kept.flip(0) if len(kept) > 1 else kept.flip(-1) if kept.numel() > 1 else kept * 1.5
            after = given()
            parameter.data = kept
            yield name, off(after, before)
