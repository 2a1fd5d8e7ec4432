"""A mixture of experts in the place of an MLP: a router, the routed experts, and optional shared experts."""

from torch import Tensor, nn
from typing_extensions import override

from ridgeline.core.models.common.decoder import MLP, GatedMLP
from ridgeline.core.models.common.dimensions import Dimensions
from ridgeline.core.models.common.fields import MAX_EXPERTS, Fields
from ridgeline.core.ops.collective import all_reduce
from ridgeline.core.ops.expert_layout import ExpertLayout
from ridgeline.core.ops.experts import Experts, ExpertSizes
from ridgeline.core.ops.nonlinearity import ClampedGate
from ridgeline.core.ops.router import ExpertRouter, RoutingRule, SharedGate

SHARED_EXPERT = ((".mlp.shared_expert.", ".mlp.shared_experts."),)
"""A rename for families whose checkpoints name the shared experts in the singular."""


class Mixture(nn.Module):
    """A mixture-of-experts layer: experts to which `gate` routes each token, plus optional shared experts.

    `shared_expert_gate` may scale the shared experts' result.
    """

    part = "feed-forward"

    def __init__(
        self,
        d: Dimensions,
        sizes: ExpertSizes,
        rule: RoutingRule,
        *,
        names: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj"),
        shared: int = 0,
        shared_bias: bool = False,
        weighed: bool = False,
        activation: ClampedGate | None = None,
        bias: bool = False,
        layout: ExpertLayout | None = None,
        weighs_inputs: bool = False,
    ) -> None:
        """Build the router, the experts and the shared experts.

        Args:
            d: The sizes of the model.
            sizes: The number of experts and their width.
            rule: The routing rule.
            names: The checkpoint's names of an expert's matrices, as in `Experts`.
            shared: Width of the shared experts, which are stored as one and have a gate projection if the others have
                one; 0 for none.
            shared_bias: Whether the matrices of the shared experts have biases.
            weighed: Whether a gate scales the result of the shared experts for each token.
            activation: The activation, if it is not the model's.
            bias: Whether the router and the experts have biases.
            layout: The layout of the experts in the checkpoint, as in `Experts`.
            weighs_inputs: Whether an expert's input is scaled by its routing weight, instead of its result.
        """
        super().__init__()
        self.gate = ExpertRouter(d.whole(d.hidden, sizes.count, bias=bias), rule)
        self.shared_experts = _shared(d, shared, shared_bias, gated=len(names) == 3) if shared else None
        self.shared_expert_gate = SharedGate(d.whole(d.hidden, 1), exempt=True) if weighed else None
        self.experts = Experts(
            sizes, d.hidden, activation or d.activation, d.dtype,
            names=names, bias=bias, layout=layout, adds=shared > 0, weighs_inputs=weighs_inputs, shard=d.expert_shard,
            gathered=d.gathered,
        )  # fmt: skip
        self.all_reduce = all_reduce(d.hidden, d.dtype, d.expert_shard, d.gathered)

    @override
    def forward(self, x_TD: Tensor) -> Tensor:
        """Return the mixture's output [rows, hidden] for x_TD [rows, hidden]."""
        weights_TK, picked_TK = self.gate(x_TD)
        shared_TD: Tensor | None = None
        if self.shared_experts is not None:
            shared_TD = self.shared_experts(x_TD)
            if self.shared_expert_gate is not None:
                shared_TD = self.shared_expert_gate(x_TD, shared_TD)
        return self.all_reduce(self.experts(x_TD, weights_TK, picked_TK, shared_TD))


def _shared(d: Dimensions, width: int, bias: bool, *, gated: bool) -> MLP:
    """Return the experts that all tokens share; their sum over ranks is left to the mixture."""
    if gated:
        return GatedMLP(d, d.gate_up(width=width, bias=bias), width=width, bias=bias, summand=True)
    up = {"up_proj": d.column(d.hidden, width, bias=bias)}
    return MLP(d, up, "down_proj", d.row(width, d.hidden, bias=bias), summand=True)


def read_experts(fields: Fields, name: str, width: str) -> ExpertSizes:
    """Read from a config the number of experts (field `name`), those per token, and one's width (field `width`)."""
    count, active = fields.count(name, most=MAX_EXPERTS), fields.count("num_experts_per_tok")
    if active > count:
        raise fields.refuse(f"num_experts_per_tok {active} is more than {name} {count}")
    return ExpertSizes(count, active, fields.count(width))


def read_corrected(fields: Fields, sizes: ExpertSizes, scale: float) -> RoutingRule:
    """Read DeepSeek-V3's routing rule (arXiv:2412.19437), with sigmoid scores and a correction for the choice.

    Experts lie in groups. `scale` is the default of `routed_scaling_factor`.
    """
    groups, best = read_groups(fields, sizes)
    if groups > 1 and sizes.count == groups:
        raise fields.refuse(
            f"n_group {groups} leaves one expert per group, but a group's score needs its best two; lower n_group"
        )
    return RoutingRule(
        sizes.active,
        "sigmoid",
        renormalise=fields.flag("norm_topk_prob", True),
        scale=fields.positive("routed_scaling_factor", scale),
        groups=groups,
        top_groups=best,
        group_score="best two",
        corrected=True,
        wide=True,
    )


def read_groups(fields: Fields, sizes: ExpertSizes) -> tuple[int, int]:
    """Read from a config the number of groups of experts, and how many of them a token may be routed to."""
    groups, best = (fields.count(name) for name in ("n_group", "topk_group"))
    if sizes.count % groups or best > groups:
        raise fields.refuse(
            f"n_group {groups} must divide {sizes.count} experts, and topk_group {best} must be at most n_group"
        )
    if sizes.active > best * (sizes.count // groups):
        raise fields.refuse(
            f"num_experts_per_tok {sizes.active} is more than the experts in {best} groups (topk_group)"
        )
    return groups, best


def read_dense_layers(fields: Fields) -> set[int]:
    """Return the layers with an MLP instead of a mixture: those listed, and all but every `decoder_sparse_step`-th."""
    step, listed = fields.count("decoder_sparse_step", 1), set(fields.integers("mlp_only_layers"))
    return {layer for layer in range(fields.layers) if layer in listed or (layer + 1) % step}
