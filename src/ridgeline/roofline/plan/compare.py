"""The same model and workload on every card of a catalogue."""

import dataclasses
from collections.abc import Sequence

from ridgeline.roofline.device import Device
from ridgeline.roofline.plan.case import Shelf
from ridgeline.roofline.plan.fit import fewest_devices
from ridgeline.roofline.plan.outcome import Outcome, outcome_of
from ridgeline.roofline.plan.serving import Serving


def compare(shelf: Shelf, serving: Serving, devices: Sequence[Device]) -> list[Outcome]:
    """On as many cards as asked for, or where that does not do, on the fewest that do.

    Cheapest tokens first, then those without a price by speed, then the cards on which it does not fit.
    """
    outcomes = [_on(shelf, serving, device) for device in devices]
    return sorted(outcomes, key=_rank)


def _on(shelf: Shelf, serving: Serving, device: Device) -> Outcome:
    setup = serving.case.setup.on(device)
    if setup.devices > 1 and device.link is None:
        setup = dataclasses.replace(setup, devices=1)
    outcome = outcome_of(Serving(shelf.case(setup), serving.workload))
    if outcome.fits:
        return outcome
    fewest = fewest_devices(shelf, setup, serving.workload)
    return outcome if fewest is None else outcome_of(Serving(shelf.case(fewest), serving.workload))


def _rank(outcome: Outcome) -> tuple[int, float]:
    if outcome.dollars_per_million is not None:
        return 0, outcome.dollars_per_million
    return (1, -outcome.tokens_per_second) if outcome.tokens_per_second is not None else (2, outcome.missing_bytes)
