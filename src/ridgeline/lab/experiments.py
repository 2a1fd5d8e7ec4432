"""The experiments that say beforehand what they expect, in the order of the guide."""

from ridgeline.lab import (
    bend,
    by_hand,
    changed_word,
    counters,
    cross,
    directions,
    distance,
    flash,
    goodput,
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
    simulated,
    speculation,
    touched,
    two_places,
    way,
)

EXPERIMENTS = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (
        way, merges, by_hand, heads, bend, directions, two_places, order, distance, changed_word, cross,
        grouped, home, launches, flash, pages, counters, interference, touched, narrow, parameters, loading, guided,
        goodput, simulated, speculation,
    )
}  # fmt: skip
