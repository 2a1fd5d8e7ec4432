"""Op: the contract of everything that computes."""

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from typing import Any, ClassVar

import msgspec

from ridgeline.core.ops.cost import NO_COST, Cost
from ridgeline.core.ops.cost_features import ExpectedExperts, Feature
from ridgeline.core.ops.kv_layout import CacheSpec
from ridgeline.core.ops.matrix import AdapterRows, LoraWeights, Matrix
from ridgeline.core.ops.number_formats import WeightFormat
from ridgeline.core.ops.stored_module import StoredModule
from ridgeline.core.ops.weight_slot import WeightSlot
from ridgeline.core.ops.work import TOKENS, AttentionPattern, RowAxis, Work


class Launch(msgspec.Struct, frozen=True, gc=False):
    """The calls of one sort of kernel that an op makes in a step.

    name: the kernel class, from the general to the particular: `attention.decode`. number_format: what it works on.
    calls: how often it is launched. cost: of all calls together. part: the method of the op that launches it, for a
    watch to time. stored: the format that its weights are stored in; empty for the model's own. sharers: query heads
    that look at the same keys and values. rows: of a product. matrices: what its rows are multiplied with, all stored
    alike.
    """

    name: str
    number_format: str
    calls: float
    cost: Cost
    part: str = "forward"
    stored: str = ""
    sharers: int = 1
    rows: int = 0
    matrices: tuple[Matrix, ...] = ()


def by_head(kernel: str, head_dim: int) -> str:
    """The name of a kernel that works head by head: `attention.decode` -> `attention.decode.64`. What a pair or a row
    takes beside its products (a softmax's exp, a short copy) weighs more, the narrower a head is.
    """
    return f"{kernel}.{1 << round(math.log2(head_dim))}"


def stored_name(stored: WeightFormat | None) -> str:
    """The name of a format that weights are stored in; "" for the model's dtype."""
    return "" if stored is None else stored.name


class OpBackend:
    """The part of a backend that is there for every op.

    name: what `env`, `trace` and errors call the backend.
    """

    name: ClassVar[str] = "reference"

    def covers(self, op: "Op") -> bool:
        """Return whether kernels of this backend do all of an op. PyTorch does at least a part of any other."""
        return True


class Op(StoredModule, ABC):
    """A step of computation that states its own price.

    A model calls ops and nothing else computes, so the ops that a forward runs and the ops that a price sums are the
    same objects. An op belongs to no row space, each call of it does: one embedding may serve an encoder and a decoder.
    Its first argument has a row for each of the call's.

    On meta, where a price traces it, an op only gives the shape of its result: torch's own meta forms take up to
    milliseconds, and a plan would wait for thousands of them.

    kind: what it is called in tables. parts: the methods that its forward calls, where it runs kernels of several
    classes. fused: whether its backend does all of it in one call; then forward is the only part. reads_context:
    whether its cost depends on `Work.attention`, that is on how long the sequences are.
    """

    kind: ClassVar[str]
    backend: OpBackend = OpBackend()
    parts: tuple[str, ...] = ("forward",)
    fused = False
    _pytorch_parts: tuple[str, ...] = ()
    reads_context: ClassVar[bool] = False
    gathered: int = 1
    """The ranks whose rows, as many as this one's, come together in a call; priced, not run."""
    part: ClassVar[str] = ""
    """The part of a model's bill that its parameters are in; "" if the module around it says that."""

    def cost(self, work: Work, space: RowAxis = TOKENS) -> Cost:
        """What one call over the rows of `space` must do in a step of `work`; nothing for no rows."""
        rows = work.rows.get(space, 0)
        return self.cost_of(rows) if rows else NO_COST

    def use_parts(self, own: tuple[str, ...] | None) -> None:
        """Run in the parts that a backend states (`Backend.parts_of`) from now on; in those of PyTorch if None."""
        self._pytorch_parts = self._pytorch_parts or self.parts
        self.parts, self.fused = own or self._pytorch_parts, own == ("forward",)

    def launches(self, work: Work, space: RowAxis = TOKENS) -> tuple[Launch, ...]:
        """Return the kernel calls of such a call of `forward`, as PyTorch makes them; none for no rows.

        A backend states its own from these (`Backend.launches`). A kernel that does all of an op at once has less to
        move than those that do it in parts: what they move and compute adds up to `cost` or more.
        """
        rows = work.rows.get(space, 0)
        return self.launches_of(rows) if rows else ()

    @property
    def features(self) -> tuple[Feature, ...]:
        """What its cost depends on beside rows and sums, in which it is a straight line."""
        return ()

    @abstractmethod
    def cost_of(self, rows: int) -> Cost:
        """What must be done for so many rows, at least 1."""

    def launches_of(self, rows: int) -> tuple[Launch, ...]:
        """Return the kernel calls over so many rows. Most ops make one."""
        return (self.whole_launch(rows),)

    def whole_launch(self, rows: int) -> Launch:
        """Return the call of one kernel that does all of the op over so many rows."""
        stored = stored_name(getattr(self, "stored", None))
        return Launch(self.kernel(rows), self.number_format, 1, self.cost_of(rows), stored=stored)

    def kernel(self, rows: int) -> str:
        """The sort of kernel that runs over so many rows, from the general to the particular."""
        return self.kind

    @property
    def number_format(self) -> str:
        """The format that its kernel works on; empty where there is but one."""
        return ""

    @abstractmethod
    def signature(self) -> Hashable:
        """Equal for two ops of one class whose `cost` is the same function, so that a price evaluates them once."""

    # -- how it is stored ---------------------------------------------------------------------------------------------

    def places(self) -> Mapping[str, WeightSlot]:
        """Return the places whose number format a recipe chooses, by the names that `store` takes. `WeightSlot.name` is
        the path within the op that a checkpoint has for it.
        """
        return {}

    def store(self, stored: Mapping[str, WeightFormat | None]) -> None:
        """Keep the numbers of every place in the format given for it, unfilled; None for the model's dtype."""
        assert not stored, f"no recipe chooses a format for {self.kind}"

    @property
    def idle_parameters(self) -> int:
        """The parameters that one row does not pass through: those of the experts that its token does not pick."""
        return 0

    def adaptable(self) -> Mapping[str, Matrix]:
        """Return the matrices that an adapter may add to, by their paths within the op."""
        return {}

    def adapt(self, number: int, name: str, added: LoraWeights, rows: AdapterRows) -> None:
        """Put the addition of the adapter `number` next to the matrix of this name."""
        raise AssertionError(f"no adapter adds to {self.kind}")

    # -- which experts it runs ----------------------------------------------------------------------------------------

    @property
    def experts(self) -> ExpectedExperts | None:
        """The experts of which its rows pass some, by which it is said how many distinct ones they hit; None if it has
        none.
        """
        return None

    def experts_hit(self, inputs: tuple[Any, ...]) -> int | None:
        """Return how many distinct experts a call with these inputs ran; None if it has none."""
        return None

    # -- what it sees and keeps of a sequence -------------------------------------------------------------------------

    @property
    def reach(self) -> AttentionPattern | None:
        """The positions that its queries see; None for an op whose rows know nothing of each other."""
        return None

    @property
    def kept_spec(self) -> CacheSpec | None:
        """The form in which it keeps what later steps read of a sequence; None if it keeps nothing."""
        return None

    def disable_kv_cache(self) -> None:
        """Keep no positions from now on: every sequence runs whole in one step."""

    @property
    def score_heads(self) -> int | None:
        """The heads that have a score for each pair of a query and a key; None for an op without scores."""
        return None

    def score_matrix_bytes(self, work: Work) -> float:
        """Return the bytes that a kernel moves in addition to `cost` if it keeps the matrix of its scores in memory."""
        return 0.0
