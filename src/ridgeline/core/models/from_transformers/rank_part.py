"""The part of a transformers class that one of several devices holds: the specs of its matrices and tables."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.core.models.from_transformers.not_bridged import NotBridged
from ridgeline.core.ops.matrix import MatrixSpec
from ridgeline.core.ops.shard import WHOLE, Shard

_MENTIONED = 0.01  # the smallest share of a rank's weights that a note mentions


@dataclass(frozen=True, eq=False, slots=True)
class RankPart:
    """The part of a class that a rank holds, known from the shapes of the class's whole parameters."""

    shard: Shard = WHOLE
    """The rank among those that divide heads, columns and vocabulary."""
    experts: Shard | None = None
    """The rank among those that divide only the experts, whose rows these then process together; None if none do."""
    tokens: Shard = WHOLE
    """The rank among those that divide the vocabulary, in the token table and in the head."""
    hidden: int = 0
    """The width of the rows that ranks add up; 0 if the class is not divided."""
    table: nn.Module | None = None
    """The token table of the class."""
    whole: Mapping[nn.Parameter, torch.Size] = field(default_factory=dict)
    """The shape of the whole parameter for each of the rank's; empty if the class is not divided."""

    @property
    def gathered(self) -> int:
        """The number of ranks whose rows the experts process together."""
        return 1 if self.experts is None else self.experts.size

    def whole_shape(self, own: Tensor) -> torch.Size:
        """Return the shape of the whole parameter of which the rank holds a part."""
        return self.whole.get(own, own.shape) if isinstance(own, nn.Parameter) else own.shape

    def spec_of(self, matrix: nn.Linear) -> MatrixSpec:
        """Return the spec of a class's matrix, in its dtype: classes keep some in fp32, such as those of routers."""
        outputs, inputs = self.whole_shape(matrix.weight)
        dtype, bias = matrix.weight.dtype, matrix.bias is not None
        if inputs > matrix.in_features:
            return MatrixSpec(inputs, outputs, dtype, bias, "row", share_of(self.shard, inputs, matrix.in_features))
        if outputs > matrix.out_features and outputs % matrix.out_features == 0:
            return MatrixSpec(
                inputs, outputs, dtype, bias, "column", share_of(self.shard, outputs, matrix.out_features)
            )
        # The ranks divide several matrices in one, each by another number: only its size is known, for a price.
        return MatrixSpec(matrix.in_features, matrix.out_features, dtype, bias)

    def spec_of_head(self, matrix: nn.Linear) -> MatrixSpec:
        """Return the spec of the output projection, of whose tokens each rank has a share if that is equal."""
        spec, shard = self.spec_of(matrix), self.tokens.if_divides(matrix.out_features)
        return replace(spec, split="column", shard=shard) if shard.size > 1 else spec

    def divides(self, module: nn.Module) -> bool:
        """Return whether a module of the class has a part of its parameters on each rank."""
        return any(own.shape != self.whole_shape(own) for own in module.parameters(recurse=False))

    def divides_inputs(self, module: nn.Module) -> bool:
        """Return whether a rank's matrices of a module, [..., inputs], multiply a part of the inputs."""
        return any(own.shape[-1] != self.whole_shape(own)[-1] for own in module.parameters(recurse=False))

    def tokens_of(self, table: nn.Embedding) -> Shard:
        """Return the share of a table's entries that the rank has: all, unless the entries are the tokens."""
        return self.tokens.if_divides(table.num_embeddings) if table is self.table else WHOLE

    def experts_of(self, own: Tensor) -> Shard:
        """Return the share of each expert that the rank holds, from a parameter of all experts."""
        return self.experts or share_of(self.shard, self.whole_shape(own).numel(), own.numel())

    def describe_undivided(self, module: Any) -> str:
        """Return which modules have matrices or tables that ranks hold whole, and their shares of a rank's weights.

        Args:
            module: The class's module, before ops take the places of its parts.
        """
        total = sum(parameter.nbytes for parameter in module.parameters())
        held: dict[str, float] = defaultdict(float)
        for own, name in self._named_matrices(module):
            if own.shape == self.whole_shape(own):
                held[name] += own.nbytes / total
        named = [f"{name} ({share:.0%})" for name, share in held.items() if share >= _MENTIONED]
        return " and ".join(named)

    def _named_matrices(self, module: Any) -> Iterator[tuple[Tensor, str]]:
        """Yield the matrices and tables of a class, each with the name of the class's own code that contains it.

        A matrix is an `nn.Linear`, a `Conv1D` of transformers, or a parameter of the class's own code. The head, and a
        table of tokens that ranks divide, are left out.
        """
        head, seen, pending = module.get_output_embeddings(), set[nn.Module](), [(module, "")]
        while pending:
            part, name = pending.pop(0)
            if part in seen or part is head or (isinstance(part, nn.Embedding) and self.tokens_of(part).size > 1):
                continue
            seen.add(part)
            name = type(part).__name__ if type(part).__module__ == type(module).__module__ else name
            yield from ((own, name) for own in part.parameters(recurse=False) if own.dim() > 1)
            pending += [(child, name) for child in part.children()]


def part_of(module: Any, whole: Mapping[str, torch.Size], shard: Shard) -> RankPart:
    """Return the part of a class that a rank holds.

    Args:
        module: The class's module, a `PreTrainedModel` that is constructed from the rank's config.
        whole: The shapes of the class's whole parameters, by name.
        shard: The rank.

    Raises:
        NotBridged: If a parameter is no part of a whole one along one dimension.
    """
    shapes: dict[nn.Parameter, torch.Size] = {}
    for name, own in module.named_parameters():
        shape = whole.get(name, torch.Size())
        differs = [size for size, all_ in zip(own.shape, shape, strict=False) if size != all_]
        if own.dim() != len(shape) or len(differs) > 1 or own.numel() > shape.numel():
            raise NotBridged(f"{name} has no part for each device")
        shapes[own] = shape
    adds_bias = any(name.endswith("bias") for name in module.all_tied_weights_keys)  # the class adds it to all logits
    hidden = module.config.get_text_config().hidden_size
    tokens = WHOLE if adds_bias else shard
    return RankPart(shard, None, tokens, hidden, module.get_input_embeddings(), shapes)


def share_of(rank: Shard, whole: int, own: int) -> Shard:
    """Return the share that a part is of a whole; several ranks hold the same one if there are fewer parts than ranks.

    Args:
        rank: The rank among all.
        whole: The size of the whole.
        own: The size of the part.
    """
    size = whole // own
    return Shard(rank.rank * size // rank.size, size)


WHOLE_CLASS = RankPart()
"""The part of a rank that holds a whole class."""
