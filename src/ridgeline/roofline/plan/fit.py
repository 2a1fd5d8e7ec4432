"""Ways to make a model fit: more cards, or a narrower format."""

import dataclasses
from collections.abc import Sequence

from ridgeline.models import ModelRefused
from ridgeline.ops.formats import FORMATS, KV_FORMATS, WEIGHT_FORMATS
from ridgeline.roofline.device import Device
from ridgeline.roofline.plan.case import Case, Setup, Shelf
from ridgeline.roofline.plan.memory import Memory, memory_of
from ridgeline.roofline.plan.workload import Workload

DEVICES = (1, 2, 4, 8)
# More than one machine has: said, but not priced, since nothing is known of what joins them.
_MORE_DEVICES = (16, 32)


def ways_to_fit(shelf: Shelf, setup: Setup, workload: Workload) -> list[Setup]:
    """What would make the model and one request fit: the widest format with the cards asked for, or if none does, a
    narrower format on fewer cards than the format asked for takes; and those, the fewest. Empty if nothing does."""
    narrower = narrower_weights(shelf.case(setup))
    same = next((s for s in narrower if fits(shelf, s, workload)), None)
    more = fewest_devices(shelf, setup, workload, (*DEVICES, *_MORE_DEVICES))
    if same is None:
        most = max(DEVICES) if more is None else min(max(DEVICES), more.devices - 1)
        same = _narrower_on_more(shelf, narrower, workload, most)
    return [way for way in (same, more) if way is not None]


def _narrower_on_more(shelf: Shelf, narrower: Sequence[Setup], workload: Workload, most: int) -> Setup | None:
    """The fewest cards, `most` at most, on which a narrower format fits, and the widest that does. Only what its share
    of the weights leaves room for is built: a build takes longer than all else here."""
    held = [(setup, _memory(shelf, setup, workload)) for setup in narrower]
    tried = (
        dataclasses.replace(setup, devices=count)
        for count in DEVICES
        for setup, memory in held
        if memory is not None
        and setup.devices < count <= most
        and memory.weights * setup.devices / count + memory.overhead < memory.budget
    )
    return next((s for s in tried if s.device.link and fits(shelf, s, workload)), None)


def fewest_devices(shelf: Shelf, setup: Setup, workload: Workload, counts: Sequence[int] = DEVICES) -> Setup | None:
    """The setup over the fewest cards on which it fits; None if it does on none of the `counts`."""
    tried = (dataclasses.replace(setup, devices=count) for count in counts)
    return next((s for s in tried if (s.devices == 1 or s.device.link) and fits(shelf, s, workload)), None)


def fits(shelf: Shelf, setup: Setup, workload: Workload) -> bool:
    """Whether the weights and one request fit; False also where the model does not divide so."""
    memory = _memory(shelf, setup, workload)
    return memory is not None and memory.fits


def eight_bits(device: Device) -> str:
    """The eight-bit weight format that a card has arithmetic for, else the one that is widened on the way."""
    return "fp8" if "fp8" in device.peaks else "int8"


def bits_of(name: str) -> int:
    """Bits of a number in a format of weights or KV."""
    return next(f.bits for f in (*FORMATS, *WEIGHT_FORMATS, *KV_FORMATS) if f.name == name)


def narrower_weights(case: Case) -> list[Setup]:
    """The same with narrower weights, the widest first. KV asked for in full is then that of the model as stored so."""
    full = {known.name for known in FORMATS}
    order = [name for name in ("bf16", eight_bits(case.device), "int4") if bits_of(name) < bits_of(case.weights)]
    kv = None if case.setup.kv in full else case.setup.kv
    return [dataclasses.replace(case.setup, weights=name, kv=kv) for name in order]


def _memory(shelf: Shelf, setup: Setup, workload: Workload) -> Memory | None:
    try:
        return memory_of(shelf.case(setup), workload)
    except ModelRefused:
        return None
