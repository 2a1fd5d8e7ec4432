"""Division: one request on several cards, by the pair of guidance and by the sequence of tokens.

CFG-parallel: each half of the cards runs one pass of a step, and their velocities are exchanged. Ulysses (Jacobs et
al., arXiv:2309.14509): each card has a part of the rows, padded to as many each, and all weights; around attention
cards exchange rows for heads, so that each attends some heads over all rows. Neither changes the result.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from typing_extensions import override

from ridgeline.core.models.common.denoiser import PICTURES, TEXT
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.work import AttentionPattern, AttentionSum, AttentionWork, Work
from ridgeline.price.price import Price


@dataclass(frozen=True, slots=True)
class ParallelDegrees:
    """guidance: 2 where the passes of a pair run side by side. sequence: parts that the rows of a pass are cut into."""

    guidance: int = 1
    sequence: int = 1

    @property
    def cards(self) -> int:
        """Cards that it takes."""
        return self.guidance * self.sequence

    @override
    def __str__(self) -> str:
        parts = ["guidance 2"] * (self.guidance > 1) + [f"sequence {self.sequence}"] * (self.sequence > 1)
        return " x ".join(parts) or "undivided"


WHOLE = ParallelDegrees()


def divisions(cards: int, texts: int, heads: int) -> list[ParallelDegrees]:
    """The ways to divide a request among so many cards. texts: passes of a step. heads: of the denoiser's attention,
    of which each part of a sequence needs one.
    """
    found = [ParallelDegrees(1, cards)]
    if texts == 2 and cards % 2 == 0:
        found.insert(0, ParallelDegrees(2, cards // 2))
    return [each for each in found if each.sequence <= heads]


class ParallelPass:
    """What one card of so many does of a pass of a denoiser."""

    def __init__(self, price: Price, parts: int) -> None:
        self._parts = parts
        self._attention = [
            (priced.op, priced.count)
            for priced in price.ops
            if isinstance(priced.op, Attention) and priced.op.reach.kind == "full"
        ]
        self._texts_are_whole = any(reach.kind == "cross" for reach in price.reaches)

    @property
    def heads(self) -> int:
        """Heads of the attention over all rows, by which it is divided: of several such ops the fewest."""
        return min(op.heads for op, _ in self._attention)

    def of(self, work: Work) -> Work:
        """A card's part of a pass over one picture: so many of the rows of each space, and some of the heads over all
        of them. Texts that are only looked at are whole on every card.
        """
        if self._parts == 1:
            return work
        assert work.sequences == 1, "a sequence is divided, not a batch"
        whole = {PICTURES, TEXT} if self._texts_are_whole else {PICTURES}
        rows = {s: count if s in whole else math.ceil(count / self._parts) for s, count in work.rows.items()}
        return Work(rows, 1, {reach: self._part(reach, each) for reach, each in work.attention.items()})

    def _part(self, reach: AttentionPattern, attention: AttentionWork) -> AttentionWork:
        """What a card attends. It has all rows for its own heads, which is as much work as its own rows for all heads,
        and is stated so; where the heads do not divide evenly, it is the card that has the most of them.
        """
        whole = attention.total
        own = math.ceil(whole.queries / self._parts)
        if reach.kind == "cross":
            return AttentionWork.of([AttentionSum(1, own, own * whole.keys, whole.keys, whole.written)])
        padded, heads = own * self._parts, self.heads
        share = math.ceil(heads / self._parts) / heads
        return AttentionWork.of([AttentionSum(1, own, math.ceil(padded**2 * share), own, own)])

    def messages(self, work: Work) -> list[Cost]:
        """What cards exchange in a pass, of which `work` is one card's part: queries, keys and values before attention
        over all rows, its results after it.
        """
        if self._parts == 1:
            return []
        found: list[Cost] = []
        for op, count in self._attention:
            rows = work.attention[op.reach].total.queries
            if not rows:  # attention over texts alone runs once a request, not in a pass
                continue
            widths = (op.heads * op.spec.k_dim, *(op.spec.heads * n for n in (op.spec.k_dim, op.spec.v_dim)))
            for width in (*widths, op.heads * op.value_dim):
                message = Cost(communication={"all_to_all": float(rows * width * op.spec.dtype.itemsize)})
                found += [message] * count
        return found


def exchange(latents: Sequence[int]) -> Cost:
    """Both velocities of a pair, of latents of this shape, so that either half of the cards makes the same step."""
    return Cost(communication={"all_gather": float(2 * 4 * math.prod(latents))})


def heads_of(price: Price) -> int:
    """Heads of a denoiser's attention over all its rows."""
    return ParallelPass(price, 1).heads


def message_bytes(costs: Iterable[Cost]) -> float:
    """Bytes of these messages, as a card has them when they are over."""
    return sum(cost.communication_bytes for cost in costs)
