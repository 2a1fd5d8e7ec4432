"""Routers: which experts a token passes, and with what weight.

Shapes: T rows of a step, I inputs, E experts, K experts a token, G groups of experts.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from msgspec import structs
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.linear import Linear, product_kernel
from ridgeline.core.ops.matrix import AdaptedMatrix, MatrixSpec, PlainMatrix
from ridgeline.core.ops.op import OpBackend
from ridgeline.core.ops.stored_module import StorageShare, weight

_NEVER_ZERO = 1e-20  # what DeepSeek-V3 adds to the sum that weights are divided by


@dataclass(frozen=True, slots=True)
class RoutingRule:
    """How logits of experts become picks and weights.

    active: experts a token. scores: what logits become. renormalise: whether the weights of those picked are made to
    add up to 1. scale: what they are multiplied with at the end. groups, top_groups, group_score: experts lie in so
    many groups, of which only the best take part, a group being as good as its best expert (DeepSeek-V2,
    arXiv:2405.04434) or as its two best together (DeepSeek-V3, arXiv:2412.19437). corrected: whether a stored number an
    expert is added to its score for the choice, and not for the weight (arXiv:2408.15664). wide: whether logits are
    computed in fp32.
    """

    active: int
    scores: Literal["softmax", "sigmoid"] = "softmax"
    renormalise: bool = False
    scale: float = 1.0
    groups: int = 1
    top_groups: int = 1
    group_score: Literal["best", "best two"] = "best"
    corrected: bool = False
    wide: bool = False

    def route(self, logits_TE: Tensor, correction_E: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Logits -> weights fp32 and ids int64 of the experts picked, each [T, K]."""
        logits_TE = logits_TE.float()
        scores_TE = logits_TE.softmax(dim=-1) if self.scores == "softmax" else logits_TE.sigmoid()
        chosen_by_TE = logits_TE if self.by_logits else scores_TE
        if correction_E is not None:
            chosen_by_TE = scores_TE + correction_E.float()
        if self.top_groups < self.groups:
            chosen_by_TE = self._within_groups(chosen_by_TE)
        picked_TK = chosen_by_TE.topk(self.active, dim=-1).indices
        weights_TK = scores_TE.gather(1, picked_TK)
        if self.renormalise:
            weights_TK = weights_TK / (weights_TK.sum(dim=-1, keepdim=True) + _NEVER_ZERO)
        return weights_TK * self.scale, picked_TK

    @property
    def by_logits(self) -> bool:
        """Whether the highest logits are picked (Llama 4): the sigmoid of all large ones is 1."""
        return self.scores == "sigmoid" and not self.corrected and self.groups == self.top_groups

    def _within_groups(self, scores_TE: Tensor) -> Tensor:
        """The scores, those of experts outside the best groups lowest."""
        scores_TGE = scores_TE.view(len(scores_TE), self.groups, -1)
        best = scores_TGE.topk(1 if self.group_score == "best" else 2, dim=-1).values.sum(dim=-1)
        out_TG = torch.ones_like(best, dtype=torch.bool)
        out_TG.scatter_(1, best.topk(self.top_groups, dim=-1).indices, value=False)
        return scores_TGE.masked_fill(out_TG[:, :, None], float("-inf")).flatten(1)


class RouterBackend(OpBackend):
    """The part of a backend that routers call, in PyTorch."""

    def route(self, op: "ExpertRouter", x_TI: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights fp32 and ids int64 of the experts that each row picks: [T, K] each."""
        return op.rule.route(op.logits(x_TI), op.e_score_correction_bias)


class ExpertRouter(Linear):
    """The logits of a layer's experts, and who is picked. Its matrix stays in the model's dtype, as quantisers leave
    it.

    e_score_correction_bias: the correction of the choice, fp32, where the rule has one; its name is the checkpoint's.
    """

    kind = "linear"
    backend: RouterBackend = RouterBackend()

    def __init__(self, spec: MatrixSpec, rule: RoutingRule) -> None:
        super().__init__(spec, exempt=True)
        assert rule.active <= spec.outputs, "no more picks than experts"
        self.rule, self.dtype = rule, spec.dtype
        self.e_score_correction_bias = weight(spec.outputs, dtype=torch.float32) if rule.corrected else None

    @override
    def forward(self, x_TI: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """x_TI [rows, inputs] -> weights fp32 and ids int64 of the experts picked, the heaviest first as a rule, each
        [rows, K].
        """
        if x_TI.is_meta:
            shape = len(x_TI), self.rule.active
            return x_TI.new_empty(shape, dtype=torch.float32), x_TI.new_empty(shape, dtype=torch.int64)
        return self.backend.route(self, x_TI)

    def logits(self, x_TI: Tensor) -> Tensor:
        """[rows, experts]."""
        if not self.rule.wide:
            return super().forward(x_TI)
        bias = self.matrix.own_bias
        logits_TE = functional.linear(
            x_TI.float(), self.matrix.values().float(), None if bias is None else bias.float()
        )
        return self.matrix.add(logits_TE, x_TI) if isinstance(self.matrix, AdaptedMatrix) else logits_TE

    @override
    def match_checkpoint(self, dtype_of: Callable[[str], str | None]) -> None:
        """As Stored.match_checkpoint: the matrix stays in fp32 if it is stored so and the logits are computed so, as
        transformers keeps it (`_keep_in_fp32_modules_strict`).
        """
        if not self.rule.wide or self.matrix.spec.dtype == torch.float32 or dtype_of("weight") != "F32":
            return
        with torch.device("meta"):
            self.matrix = PlainMatrix(replace(self.matrix.spec, dtype=torch.float32))
        self.matrix.unnamed = True

    @override
    def shares(self) -> tuple[StorageShare, ...]:
        own = self.e_score_correction_bias
        return (
            super().shares() if own is None else (*super().shares(), StorageShare(None, own.numel(), float(own.nbytes)))
        )

    @override
    def cost_of(self, rows: int) -> Cost:
        """As Linear.cost_of, with the correction read; what leaves is a weight and an id a pick."""
        product, own = super().cost_of(rows), self.e_score_correction_bias
        correction = 0 if own is None else own.nbytes
        moved = rows * (self.matrix.inputs * self.dtype.itemsize + self.rule.active * (4 + 8))
        return structs.replace(product, weight_bytes=product.weight_bytes + correction, activation_bytes=moved)

    @override
    def kernel(self, rows: int) -> str:
        return product_kernel("linear", rows, self.matrix)

    @override
    def signature(self) -> Hashable:
        return super().signature(), self.rule

    @override
    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {self.rule.active} picked"


class SharedGate(Linear):
    """y x sigmoid(x w): how much each token takes of the shared expert (Qwen2-MoE, arXiv:2407.10671)."""

    kind = "linear"

    @override
    def forward(self, x_TI: Tensor, y_TD: Tensor) -> Tensor:  # type: ignore[override]
        """x_TI [rows, inputs], y_TD [rows, D]: what the shared expert gave -> [rows, D]."""
        if x_TI.is_meta:
            return y_TD.new_empty(y_TD.shape)
        return y_TD * super().forward(x_TI).sigmoid()

    @override
    def cost_of(self, rows: int) -> Cost:
        """As Linear.cost_of, with what it weighs in and out."""
        product, spec = super().cost_of(rows), self.matrix.spec
        return structs.replace(product, activation_bytes=3 * rows * spec.inputs * spec.dtype.itemsize)
