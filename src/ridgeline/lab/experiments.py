"""The experiments that say beforehand what they expect, in the order of the guide."""

from ridgeline.lab import (
    bend,
    by_hand,
    changed_word,
    counters,
    directions,
    distance,
    flash,
    grouped,
    guided,
    heads,
    home,
    interference,
    launches,
    loading,
    merges,
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
        merges, by_hand, heads, bend, directions, two_places, order, distance, changed_word,
        grouped, home, launches, flash, loading,
        pages, counters, interference, touched, narrow, parameters, guided,
    )
}  # fmt: skip
