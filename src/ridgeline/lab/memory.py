"""Users on a card, subtraction by subtraction.

A card's memory holds the weights, what a step needs while it runs, and what libraries take. The rest is for keys and
values, and that divided by what one user's context takes is how many users there can be at a time.
"""

import math
from dataclasses import dataclass

from ridgeline.checkpoint import read_config
from ridgeline.models import build
from ridgeline.models.bill import bill
from ridgeline.roofline.device import Device
from ridgeline.roofline.plan import Setup, Workload
from ridgeline.roofline.plan.case import Case, Shelf
from ridgeline.roofline.plan.memory import activation_peak, overhead_of, sequence_bytes, weight_bytes

_MOST_CARDS = 8


@dataclass(frozen=True, slots=True)
class Texts:
    """The subtraction as texts teach it, in GB (10^9): parameters x 2 bytes from the number on the box, and the rest
    divided by 2 x layers x KV heads x head dim x 2 bytes for every token."""

    card: float
    weights: float
    left: float
    request: float

    @property
    def users(self) -> int:
        """Requests that fit."""
        return max(0, int(self.left // self.request))


@dataclass(frozen=True, slots=True)
class Step:
    """One subtraction: what it takes, in bytes, and what is left of the card after it."""

    name: str
    takes: float
    left: float


@dataclass(frozen=True, slots=True)
class Users:
    """A model on `cards` cards of one sort; all bytes are those of one card. steps: from the card to what is left.

    token: KV bytes of a position, request: of a whole request. fits_on: the fewest cards (1, 2, 4, 8) on which one user
    fits, None if not even eight do.
    """

    model: str
    cards: int
    total: float
    steps: tuple[Step, ...]
    token: float
    request: float
    texts: Texts
    fits_on: int | None

    @property
    def users(self) -> int:
        """Requests that fit at a time."""
        return max(0, int(self.steps[-1].left // self.request))


def users_on(model: str, device: Device, cards: int, context: int, utilization: float = 0.9) -> Users:
    """The experiment: a model in its own format on so many cards, users of `context` positions each."""
    shelf = Shelf(read_config(model))
    case = shelf.case(Setup(device, cards, utilization=utilization))
    steps = _subtract(case, context)
    token = sequence_bytes(case.model.kv_specs, 1)
    request = sequence_bytes(case.model.kv_specs, context)
    fits_on = cards if steps[-1].left >= request else _fewest(shelf, device, context, utilization, above=cards)
    return Users(model, cards, device.memory, steps, token, request, _texts(model, device, cards, context), fits_on)


def _subtract(case: Case, context: int) -> tuple[Step, ...]:
    """Every subtraction, in order."""
    workload, left = Workload(input=context), case.device.memory
    takes = {
        f"kept free ({1 - case.setup.utilization:.0%} of the card)": (1 - case.setup.utilization) * left,
        f"weights ({case.weights})": weight_bytes(case),
        f"activations of a step of {workload.step_tokens:,}": activation_peak(case.price, workload.step_tokens),
        "driver, libraries, sampler": overhead_of(case.device, case.setup.devices),
    }
    steps = []
    for name, nbytes in takes.items():
        left -= nbytes
        steps.append(Step(name, nbytes, left))
    return tuple(steps)


def _fewest(shelf: Shelf, device: Device, context: int, utilization: float, above: int) -> int | None:
    """The fewest cards, more than `above`, on which one user fits."""
    for cards in (2, 4, _MOST_CARDS):
        if cards <= above:
            continue
        case = shelf.case(Setup(device, cards, utilization=utilization))
        if _subtract(case, context)[-1].left >= sequence_bytes(case.model.kv_specs, context):
            return cards
    return None


def _texts(model: str, device: Device, cards: int, context: int) -> Texts:
    whole = build(read_config(model))
    gib = device.memory / 2**30
    box = math.ceil(gib) if gib > 64 else 8 * math.ceil(gib / 8)  # what is sold as 24 GB shows 22.5 to 24 GiB
    weights = round(bill(whole).total / 1e9) * 2e9
    request = sum(2 * s.heads * s.k_dim * 2 for s in whole.kv_specs) * context
    return Texts(cards * box * 1e9, weights, cards * box * 1e9 - weights, request)
