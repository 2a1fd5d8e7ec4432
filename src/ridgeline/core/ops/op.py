"""The base class of all ops, and the description of the kernels that they launch."""

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from typing import Any, ClassVar

import msgspec
import torch
from typing_extensions import override

from ridgeline.core.ops.cost import NO_COST, Cost
from ridgeline.core.ops.cost_features import ExpectedExperts, Feature
from ridgeline.core.ops.kv_layout import CacheSpec
from ridgeline.core.ops.matrix import AdapterRows, LoraWeights, Matrix
from ridgeline.core.ops.number_formats import KVFormat, WeightFormat, format_of
from ridgeline.core.ops.stored_module import StoredModule
from ridgeline.core.ops.weight_slot import WeightSlot
from ridgeline.core.ops.work import TOKENS, AttentionPattern, RowAxis, Work

NOT_MODELLED = "not modelled"
"""The kind of ops of which only the shapes of their tensors are known: bytes are counted, and no kernel was timed."""


class Launch(msgspec.Struct, frozen=True, gc=False):
    """One class of kernel that a call of an op launches in a step, with the number of launches and their cost."""

    name: str
    """The class of a launched kernel, from general to specific, such as `attention.decode.64`."""
    number_format: str
    """The name of the number format that a launched kernel computes in."""
    calls: float
    """The number of launches of one kernel in a call of an op; an expected value for experts."""
    cost: Cost
    """The cost of all launches of one kernel in a call of an op, added up."""
    method: str = "forward"
    """The method of the op that launches a kernel, by which profilers attribute the time."""
    weight_format: str = ""
    """The name of the weight format that a kernel reads; "" for the model's dtype."""
    query_heads_per_kv_head: int = 1
    """The number of query heads that share one key-value head, for attention kernels."""
    rows: int = 0
    """The number of rows of a matrix-product kernel; 0 for other kernels."""
    matrices: tuple[Matrix, ...] = ()
    """The matrices of a matrix-product kernel, all in the same weight format; empty for other kernels."""


def kernel_by_head_dim(kernel: str, head_dim: int) -> str:
    """Return the class of a kernel that works head by head, with the head dimension rounded to a power of two.

    For example, `attention.decode` becomes `attention.decode.64`. The narrower a head is, the more of the time goes
    into work other than its products, such as the exponential of the softmax or a short copy.
    """
    return f"{kernel}.{1 << round(math.log2(head_dim))}"


def stored_name(stored: WeightFormat | None) -> str:
    """Return the name of a weight format, or "" for the model's dtype."""
    return "" if stored is None else stored.name


class OpBackend:
    """The methods of a backend that apply to every op."""

    name: ClassVar[str] = "reference"
    """The backend's name in `ridgeline env`, traces and error messages."""

    def covers(self, op: "Op") -> bool:
        """Return whether this backend's kernels do all the work of an op, with no part left to PyTorch."""
        return True


class Op(StoredModule, ABC):
    """The base class of all ops: one computation of a model, with its cost.

    Models compute only by calling ops. So the ops that a forward pass runs and the ops whose costs a price sums up are
    the same objects. Each call has a row axis (tokens, logits, encoder positions), which is no property of the op: one
    embedding may serve an encoder and a decoder. The first argument of `forward` has one row for each row of that axis.

    On the meta device, on which a price traces the model, an op only returns an empty tensor of the right shape.
    PyTorch's own meta kernels take up to milliseconds per call, and a plan would wait for thousands of them.
    """

    kind: ClassVar[str]
    """The name of an op's class in tables for users."""
    kernel_name: ClassVar[str] = ""
    """The class of an op's kernel, from general to specific, if it has one kernel; "" for `kind`."""
    backend: OpBackend = OpBackend()
    """The backend that executes an op."""
    parts: tuple[str, ...] = ("forward",)
    """The names of the methods that launch an op's kernels: `forward`, or several if there are several classes."""
    fused = False
    """Whether the backend executes an op in one call; then `forward` is its only part."""
    _pytorch_parts: tuple[str, ...] = ()
    reads_context: ClassVar[bool] = False
    """Whether an op's cost depends on `Work.attention`, and so on the sequence lengths."""
    gathered_ranks: int = 1
    """The number of ranks whose rows a call of an op processes together; above 1 it is only priced, not run.

    Each of them has as many rows as this rank.
    """
    attention_pattern: AttentionPattern | None = None
    """The attention pattern of the op's queries; None for an op whose rows do not depend on each other."""
    score_heads: int | None = None
    """The number of heads with an attention score per query-key pair; None for an op without scores."""
    idle_parameters = 0
    """The number of an op's parameters that one token does not use: those of experts that it is not routed to."""
    experts: ExpectedExperts | None = None
    """The formula for the expected number of distinct experts in a step; None if the op has no experts."""
    fuses_inputs: ClassVar[bool] = False
    """Whether a kernel does an op together with the elementwise operations that make its inputs."""
    traced = ""
    """The category of a release's code that an op only stands for; "" for an op of ours, whose cost is derived."""
    part: ClassVar[str] = ""
    """The line of a model's parameter breakdown that an op counts towards; "" if the enclosing module sets it."""

    def cost(self, work: Work, space: RowAxis = TOKENS) -> Cost:
        """Return the cost of one call of an op over the rows of one kind (`space`) in a step of size `work`.

        It is zero if there are no rows.
        """
        rows = work.rows.get(space, 0)
        return self.cost_of(rows) if rows else NO_COST

    def set_kernel_methods(self, own: tuple[str, ...] | None) -> None:
        """Set which of an op's methods launch kernels: a backend's (`Backend.parts_of`), or PyTorch's if None."""
        self._pytorch_parts = self._pytorch_parts or self.parts
        self.parts, self.fused = own or self._pytorch_parts, own == ("forward",)

    def launches(self, work: Work, space: RowAxis = TOKENS) -> tuple[Launch, ...]:
        """Return the kernel launches of one call of `forward` in PyTorch, or none if there are no rows.

        A backend derives its own launches from these (`Backend.launches`). One fused kernel moves fewer bytes than the
        kernels of the parts do, so the launches together move and compute at least as much as `cost`.
        """
        rows = work.rows.get(space, 0)
        return self.launches_of(rows) if rows else ()

    @property
    def features(self) -> tuple[Feature, ...]:
        """The terms, besides row counts and attention sums, in which an op's cost is linear."""
        return ()

    @abstractmethod
    def cost_of(self, rows: int) -> Cost:
        """Return the cost of one call of an op over `rows` rows; `rows` is at least 1."""

    def launches_of(self, rows: int) -> tuple[Launch, ...]:
        """Return the kernel launches of an op over `rows` rows; most ops make one."""
        return (self.whole_launch(rows),)

    def whole_launch(self, rows: int) -> Launch:
        """Return the launch of one fused kernel that does the whole op over `rows` rows."""
        stored = stored_name(getattr(self, "stored", None))
        return Launch(self.kernel(rows), self.number_format, 1, self.cost_of(rows), weight_format=stored)

    def kernel(self, rows: int) -> str:
        """Return the class of the kernel that runs over `rows` rows, from general to specific."""
        return self.kernel_name or self.kind

    @property
    def number_format(self) -> str:
        """The name of the number format that an op's kernel computes in; "" if there is only one."""
        return ""

    @abstractmethod
    def signature(self) -> Hashable:
        """Return a key that is equal for two ops of one class if their `cost` is the same function.

        A price evaluates such ops once.
        """

    # -- how it is stored ---------------------------------------------------------------------------------------------

    def weight_slots(self) -> Mapping[str, WeightSlot]:
        """Return the weight slots of an op, for which a quantisation recipe chooses weight formats.

        The keys are the names that `set_weight_formats` takes. `WeightSlot.name` is the path within the op that
        a checkpoint uses for the slot.
        """
        return {}

    def set_weight_formats(self, stored: Mapping[str, WeightFormat | None]) -> None:
        """Set the weight format of each slot of an op before the weights are loaded; None is the model's dtype."""
        assert not stored, f"a recipe cannot choose a format for {self.kind}"

    def adaptable_matrices(self) -> Mapping[str, Matrix]:
        """Return the matrices of an op that a LoRA adapter may extend, keyed by their paths within the op."""
        return {}

    def attach_adapter(self, number: int, name: str, added: LoraWeights, rows: AdapterRows) -> None:
        """Attach the low-rank weights of a LoRA adapter to one matrix of the op.

        Args:
            number: The number of the adapter, from 1.
            name: The path of the matrix within the op, as in `adaptable_matrices`.
            added: The adapter's low-rank weights for this matrix.
            rows: The rows of each adapter in the running step.
        """
        raise AssertionError(f"{self.kind} does not support adapters")

    # -- which experts it runs ----------------------------------------------------------------------------------------

    def experts_hit(self, inputs: tuple[Any, ...]) -> int | None:
        """Return the number of distinct experts that a call with these inputs ran, or None if the op has no experts."""
        return None

    # -- what it sees and keeps of a sequence -------------------------------------------------------------------------

    @property
    def cache_spec(self) -> CacheSpec | None:
        """The format of an op's KV cache or recurrent state; None if later steps read nothing of this op."""
        return None

    def with_kv_format(self, stored: KVFormat | None) -> "Op":
        """Return a copy of the op that caches keys and values in another format, to be priced; or the op itself."""
        return self

    def disable_kv_cache(self) -> None:
        """Stop writing keys and values to a KV cache: every sequence runs whole in one step from now on."""

    def score_matrix_bytes(self, work: Work) -> float:
        """Return the bytes, beyond `cost`, that attention moves if it writes its score matrix to memory."""
        return 0.0


class TypedOp(Op):
    """An op whose kernel computes in one dtype: that of its weights, or of its inputs and outputs."""

    dtype: torch.dtype

    @property
    @override
    def number_format(self) -> str:
        return format_of(self.dtype).name
