"""The experiments that say beforehand what they expect, in the order of the guide."""

from ridgeline.lab import (
    bend,
    by_hand,
    directions,
    guided,
    interference,
    narrow,
    order,
    pages,
    parameters,
    touched,
    two_places,
)

EXPERIMENTS = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (
        by_hand, bend, directions, two_places, order, pages, interference, touched, narrow, parameters, guided,
    )
}  # fmt: skip
