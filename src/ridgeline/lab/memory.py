"""Users on a card, subtraction by subtraction.

A card's memory holds the weights, what a step needs while it runs, and what libraries take. The rest is for keys and
values, and that divided by what one user's context takes is how many users there can be at a time.
"""

import math
from dataclasses import dataclass

from ridgeline.checkpoint import read_config
from ridgeline.models import Fields, build
from ridgeline.models.bill import bill
from ridgeline.roofline.device import Device
from ridgeline.roofline.plan import Setup, Workload
from ridgeline.roofline.plan.case import Case, Shelf
from ridgeline.roofline.plan.fit import DEVICES, fewest_devices
from ridgeline.roofline.plan.memory import Memory, memory_of


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

    token: KV bytes of a position, request: of a whole request, in whole pages. users: requests that fit at a time.
    fits_on: the fewest cards (1, 2, 4, 8) on which one user fits, None if there is no such number: cards without a link
    are no two, and a model's heads do not divide over any number of them.
    """

    model: str
    cards: int
    total: float
    steps: tuple[Step, ...]
    token: float
    request: float
    users: int
    texts: Texts
    fits_on: int | None


def users_on(model: str, device: Device, cards: int, context: int) -> Users:
    """The experiment: a model in its own format on so many cards, users of `context` positions each.

    Raises ValueError for cards that are not joined, more than one machine has, or a context that the model does not.
    """
    if cards > max(DEVICES):
        raise ValueError(f"--devices is {cards}; one machine has up to {max(DEVICES)}")
    if cards > 1 and device.link is None:
        raise ValueError(f"--devices is {cards}; {device.name} has no link to other cards: use one, or another card")
    fields = read_config(model)
    shelf, setup = Shelf(fields), Setup(device, cards)
    case = shelf.case(setup)
    if not 2 <= context <= case.model.context:
        raise ValueError(
            f"--context is {context:,}; {model} can have 2 (a prompt and an answer) to {case.model.context:,} tokens"
        )
    workload = Workload(input=context - 1, output=1)
    memory = memory_of(case, workload)
    fewest = setup if memory.fits else fewest_devices(shelf, setup, workload, [n for n in DEVICES if n > cards])
    return Users(
        model, cards, memory.total, _subtract(case, workload, memory),
        memory.kv_bytes_per_token, memory.request_bytes, memory.users,
        _texts(fields, device, cards, context), None if fewest is None else fewest.devices,
    )  # fmt: skip


def _subtract(case: Case, workload: Workload, memory: Memory) -> tuple[Step, ...]:
    """Every subtraction, in order."""
    left, steps = memory.total, []
    for name, nbytes in {
        f"kept free ({1 - case.setup.utilization:.0%} of the card)": memory.total - memory.budget,
        f"weights ({case.weights})": memory.weights,
        f"activations of a step of {workload.step_tokens:,}": memory.activations,
        "driver, libraries, sampler": memory.overhead,
    }.items():
        left -= nbytes
        steps.append(Step(name, nbytes, left))
    return tuple(steps)


def _texts(fields: Fields, device: Device, cards: int, context: int) -> Texts:
    whole = build(fields)
    gib = device.memory / 2**30
    box = math.ceil(gib) if gib > 64 else 8 * math.ceil(gib / 8)  # what is sold as 24 GB shows 22.5 to 24 GiB
    weights = 2 * _on_the_box(bill(whole).total)
    request = sum(2 * s.heads * s.k_dim * 2 for s in whole.kv_specs) * context
    return Texts(cards * box * 1e9, weights, cards * box * 1e9 - weights, request)


def _on_the_box(parameters: int) -> float:
    """Parameters as names have them: 8B, 1.5B, 120M, 71B, 406B."""
    return float(f"{parameters:.1e}") if parameters < 10e9 else round(parameters / 1e9) * 1e9
