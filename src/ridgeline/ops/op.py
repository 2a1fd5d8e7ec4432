"""Op: the contract of everything that computes."""

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from typing import Any, ClassVar, Literal

import msgspec

from ridgeline.ops.cost import NO_COST, Cost
from ridgeline.ops.features import Feature, Touched
from ridgeline.ops.formats import WeightFormat
from ridgeline.ops.kv import Kept
from ridgeline.ops.matrix import AdapterRows, LowRank, Matrix
from ridgeline.ops.place import Place
from ridgeline.ops.stored import Stored
from ridgeline.ops.work import TOKENS, Reach, Space, Work


class Kernel(msgspec.Struct, frozen=True, gc=False):
    """What one sort of kernel does of an op in a step.

    name: its calibration class, from the general to the particular: `attention.decode`. number_format: what it works
    on. calls: how often it is launched. cost: of all calls together. part: the method of the op that launches it, for
    a watch to time. stored: the format that its weights are stored in; empty for the model's own. sharers: query heads
    that look at the same keys and values.
    """

    name: str
    number_format: str
    calls: float
    cost: Cost
    part: str = "forward"
    stored: str = ""
    sharers: int = 1


Runs = Literal["torch", "native", "card"]
"""Whose kernels run: torch's or another engine's, ours for the processor, ours for cards."""


def by_head(kernel: str, head_dim: int) -> str:
    """The name of a kernel that works head by head: `attention.decode` -> `attention.decode.64`. What a pair or a row
    takes beside its products (a softmax's exp, a short copy) weighs more, the narrower a head is."""
    return f"{kernel}.{1 << round(math.log2(head_dim))}"


def stored_name(stored: WeightFormat | None) -> str:
    """The name of a format that weights are stored in; "" for the model's dtype."""
    return "" if stored is None else stored.name


class Op(Stored, ABC):
    """A step of computation that states its own price.

    A model calls ops and nothing else computes, so the ops that a forward runs and the ops that a price sums are the
    same objects. An op belongs to no row space, each call of it does: one embedding may serve an encoder and a decoder.
    Its first argument has a row for each of the call's.

    On meta, where a price traces it, an op only gives the shape of its result: torch's own meta forms take up to
    milliseconds, and a plan would wait for thousands of them.

    kind: what it is called in tables. parts: the methods that its forward calls, where it runs kernels of several
    classes. fused: whether one kernel of ours does all of it (`fuse`). reads_context: whether its cost depends on
    `Work.attention`, that is on how long the sequences are.
    """

    kind: ClassVar[str]
    parts: tuple[str, ...] = ("forward",)
    fused = False
    reads_context: ClassVar[bool] = False
    gathered: int = 1
    """The ranks whose rows, as many as this one's, come together in a call; priced, not run."""
    part: ClassVar[str] = ""
    """The part of a model's bill that its parameters are in; "" if the module around it says that."""

    def cost(self, work: Work, space: Space = TOKENS) -> Cost:
        """What one call over the rows of `space` must do in a step of `work`; nothing for no rows."""
        rows = work.rows.get(space, 0)
        return self.cost_of(rows) if rows else NO_COST

    def kernels(self, work: Work, space: Space = TOKENS) -> tuple[Kernel, ...]:
        """The kernels that such a call of `forward` runs; none for no rows. A kernel that can do all of an op at once
        has less to move than those that do it in parts: what they move and compute adds up to `cost` or more."""
        rows = work.rows.get(space, 0)
        return self.kernels_of(rows) if rows else ()

    def native_kernels(self, work: Work, space: Space = TOKENS) -> tuple[Kernel, ...]:
        """The kernels of such a call where ours (`ops/kernels`) run, as far as they take the op. `kernels` are torch's,
        or those of an engine that is priced."""
        rows = work.rows.get(space, 0)
        return self.native_kernels_of(rows) if rows else ()

    def card_kernels(self, work: Work, space: Space = TOKENS) -> tuple[Kernel, ...]:
        """The kernels of such a call where ours for cards run, as far as there are any."""
        rows = work.rows.get(space, 0)
        return self.card_kernels_of(rows) if rows else ()

    def kernels_by(self, runs: Runs, work: Work, space: Space = TOKENS) -> tuple[Kernel, ...]:
        """The kernels of such a call by whose they are."""
        of = {"torch": self.kernels, "native": self.native_kernels, "card": self.card_kernels}
        return of[runs](work, space)

    @property
    def runs_natively(self) -> bool:
        """Whether our kernels compute all of it once it is fused, in a number format that they take."""
        return False

    @property
    def fusible(self) -> bool:
        """Whether there is a kernel of ours that does at once what torch does in parts."""
        return False

    def fuse(self) -> None:
        """From now on have that kernel do it, as this machine has it. What it must cost is the same."""
        if self.fusible:
            self.fused, self.parts = True, ("forward",)

    def settle_on_card(self) -> None:
        """From now on run on a card: what a kernel for the processor did at once is done in parts again, unless there
        is one for cards."""
        self.fused, self.parts = False, type(self).parts

    @property
    def features(self) -> tuple[Feature, ...]:
        """What its cost depends on beside rows and sums, in which it is a straight line."""
        return ()

    @abstractmethod
    def cost_of(self, rows: int) -> Cost:
        """What must be done for so many rows, at least 1."""

    def kernels_of(self, rows: int) -> tuple[Kernel, ...]:
        """The kernels that run over so many rows. Most ops call one."""
        stored = stored_name(getattr(self, "stored", None))
        return (Kernel(self.kernel(rows), self.number_format, 1, self.cost_of(rows), stored=stored),)

    def native_kernels_of(self, rows: int) -> tuple[Kernel, ...]:
        """As `kernels_of`, where ours run. Where torch's would be one kernel, of the same class, so is ours."""
        return self.kernels_of(rows)

    def card_kernels_of(self, rows: int) -> tuple[Kernel, ...]:
        """As `kernels_of`, where ours for cards run."""
        return self.kernels_of(rows)

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

    def places(self) -> Mapping[str, Place]:
        """Return the places whose number format a recipe chooses, by the names that `store` takes. `Place.name` is the
        path within the op that a checkpoint has for it."""
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

    def adapt(self, number: int, name: str, added: LowRank, rows: AdapterRows) -> None:
        """Put the addition of the adapter `number` next to the matrix of this name."""
        raise AssertionError(f"no adapter adds to {self.kind}")

    # -- which experts it runs ----------------------------------------------------------------------------------------

    @property
    def experts(self) -> Touched | None:
        """The experts of which its rows pass some, by which it is said how many distinct ones they hit; None if it has
        none."""
        return None

    def experts_hit(self, inputs: tuple[Any, ...]) -> int | None:
        """Return how many distinct experts a call with these inputs ran; None if it has none."""
        return None

    # -- what it sees and keeps of a sequence -------------------------------------------------------------------------

    @property
    def reach(self) -> Reach | None:
        """The positions that its queries see; None for an op whose rows know nothing of each other."""
        return None

    @property
    def kept_spec(self) -> Kept | None:
        """What later steps read of a sequence that this one wrote; None if nothing is kept."""
        return None

    def keep_nothing(self) -> None:
        """Keep no positions from now on: every sequence runs whole in one step."""

    @property
    def score_heads(self) -> int | None:
        """The heads that have a score for each pair of a query and a key; None for an op without scores."""
        return None

    def score_matrix_bytes(self, work: Work) -> float:
        """Return the bytes that a kernel moves in addition to `cost` if it keeps the matrix of its scores in memory."""
        return 0.0
