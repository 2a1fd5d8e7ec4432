"""Routers: the choice of the experts that process a token, and their weights.

Shapes: T rows of a step, I inputs, E experts, K experts per token, G groups of experts.
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

_NEVER_ZERO = 1e-20  # DeepSeek-V3 adds it to the divisor of the weights


@dataclass(frozen=True, slots=True)
class RoutingRule:
    """The rule that turns router logits into selected experts and routing weights."""

    active: int
    """The number of experts that each token is routed to."""
    scores: Literal["softmax", "sigmoid"] = "softmax"
    """The function that turns router logits into scores."""
    renormalise: bool = False
    """Whether the weights of the selected experts are normalised to a sum of 1."""
    scale: float = 1.0
    """The factor on the final routing weights."""
    groups: int = 1
    """The number of groups into which the router divides the experts."""
    top_groups: int = 1
    """The number of groups, those with the best scores, whose experts a token can be routed to."""
    group_score: Literal["best", "best two"] = "best"
    """The score of a group of experts: its best expert's, or the sum of its two best.

    The former is DeepSeek-V2's (arXiv:2405.04434), the latter DeepSeek-V3's (arXiv:2412.19437).
    """
    corrected: bool = False
    """Whether a stored correction per expert is added to its score for the selection, but not for the weight.

    It balances the load without an auxiliary loss (arXiv:2408.15664).
    """
    wide: bool = False
    """Whether router logits are computed in fp32."""

    def route(self, logits_TE: Tensor, correction_E: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the weights, fp32, and the ids, int64, of the selected experts: [T, K] each."""
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
        """Whether experts are selected by their logits (Llama 4), because sigmoids of large logits all round to 1."""
        return self.scores == "sigmoid" and not self.corrected and self.groups == self.top_groups

    def _within_groups(self, scores_TE: Tensor) -> Tensor:
        """Return the experts' scores, with -inf for those outside the best groups."""
        scores_TGE = scores_TE.view(len(scores_TE), self.groups, -1)
        best = scores_TGE.topk(1 if self.group_score == "best" else 2, dim=-1).values.sum(dim=-1)
        out_TG = torch.ones_like(best, dtype=torch.bool)
        out_TG.scatter_(1, best.topk(self.top_groups, dim=-1).indices, value=False)
        return scores_TGE.masked_fill(out_TG[:, :, None], float("-inf")).flatten(1)


class RouterBackend(OpBackend):
    """The methods of a backend that routers call, implemented in PyTorch."""

    def route(self, op: "ExpertRouter", x_TI: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights, fp32, and the ids, int64, of the experts selected for each row: [T, K] each."""
        return op.rule.route(op.logits(x_TI), op.e_score_correction_bias)


class ExpertRouter(Linear):
    """The router of a layer: a matrix from hidden states to expert logits, and the rule that selects experts.

    The matrix stays in the model's dtype, as quantisers leave it.

    Attributes:
        e_score_correction_bias: The correction of the scores for the selection, fp32, under the checkpoint's name; None
            if the rule has none.
    """

    kind = "linear"
    backend: RouterBackend = RouterBackend()

    def __init__(self, spec: MatrixSpec, rule: RoutingRule) -> None:
        super().__init__(spec, exempt=True)
        assert rule.active <= spec.outputs, "a token cannot be routed to more experts than there are"
        self.rule, self.dtype = rule, spec.dtype
        self.e_score_correction_bias = weight(spec.outputs, dtype=torch.float32) if rule.corrected else None

    @override
    def forward(self, x_TI: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Return the routing weights, fp32, and the ids, int64, of each row's experts: [rows, K] each.

        Experts are usually in the order of descending weight.

        Args:
            x_TI: The hidden states [rows, inputs].
        """
        if x_TI.is_meta:
            shape = len(x_TI), self.rule.active
            return x_TI.new_empty(shape, dtype=torch.float32), x_TI.new_empty(shape, dtype=torch.int64)
        return self.backend.route(self, x_TI)

    def logits(self, x_TI: Tensor) -> Tensor:
        """Return the expert logits of rows x_TI: [rows, experts]."""
        if not self.rule.wide:
            return super().forward(x_TI)
        bias = self.matrix.own_bias
        logits_TE = functional.linear(
            x_TI.float(), self.matrix.dequantised().float(), None if bias is None else bias.float()
        )
        return self.matrix.add(logits_TE, x_TI) if isinstance(self.matrix, AdaptedMatrix) else logits_TE

    @override
    def match_checkpoint(self, dtype_of: Callable[[str], str | None]) -> None:
        """Keep the router's matrix in fp32 if the checkpoint stores it so and logits are computed in fp32.

        So does transformers (`_keep_in_fp32_modules_strict`).
        """
        if not self.rule.wide or self.matrix.spec.dtype == torch.float32 or dtype_of("weight") != "F32":
            return
        with torch.device("meta"):
            self.matrix = PlainMatrix(replace(self.matrix.spec, dtype=torch.float32))
        self.matrix.unnamed = True

    @override
    def storage_shares(self) -> tuple[StorageShare, ...]:
        own = self.e_score_correction_bias
        return (
            super().storage_shares()
            if own is None
            else (*super().storage_shares(), StorageShare(None, own.numel(), float(own.nbytes)))
        )

    @override
    def cost_of(self, rows: int) -> Cost:
        """Return the cost of routing: the product and the correction read; each selection is a weight and an id."""
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
    """The gate of a shared expert, y x sigmoid(x w), by which each token weighs it (Qwen2-MoE, arXiv:2407.10671)."""

    kind = "linear"

    @override
    def forward(self, x_TI: Tensor, y_TD: Tensor) -> Tensor:  # type: ignore[override]
        """Scale the shared expert's result y_TD [rows, D] by the gate of x_TI [rows, inputs]."""
        if x_TI.is_meta:
            return y_TD.new_empty(y_TD.shape)
        return y_TD * super().forward(x_TI).sigmoid()

    @override
    def cost_of(self, rows: int) -> Cost:
        """Return the cost of a shared expert's gate: the product, with the rows that it scales read and written."""
        product, spec = super().cost_of(rows), self.matrix.spec
        return structs.replace(product, activation_bytes=3 * rows * spec.inputs * spec.dtype.itemsize)
