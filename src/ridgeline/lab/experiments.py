"""The experiments that say beforehand what they expect, in the order of the guide."""

from ridgeline.lab import (
    bend,
    by_hand,
    cross,
    directions,
    goodput,
    guided,
    interference,
    narrow,
    order,
    pages,
    parameters,
    simulated,
    speculation,
    touched,
    two_places,
    way,
)

EXPERIMENTS = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (
        way, by_hand, bend, directions, two_places, order, cross, pages, interference, touched, narrow, parameters,
        guided, goodput, simulated, speculation,
    )
}  # fmt: skip
