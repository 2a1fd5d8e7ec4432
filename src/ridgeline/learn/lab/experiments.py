"""The experiments that state their expectations, in the order of the guide."""

from ridgeline.learn.lab import (
    active_experts,
    attention_by_hand,
    bend,
    changed_word,
    chunked_prefill,
    counters,
    directions,
    distance,
    file_loading,
    flash,
    goodput,
    grouped_heads,
    guidance_cost,
    head_roles,
    kernel_launches,
    kv_paging,
    merges,
    narrow,
    order,
    parameters,
    roofline_at_home,
    simulated,
    speculation,
    token_path,
    two_places,
    two_stacks,
)

EXPERIMENTS = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (
        token_path, merges, attention_by_hand, head_roles, bend, directions, two_places, order, distance, changed_word,
        two_stacks, grouped_heads, roofline_at_home, kernel_launches, flash, kv_paging, counters, chunked_prefill,
        active_experts, narrow, parameters, file_loading, guidance_cost, goodput, simulated, speculation,
    )
}  # fmt: skip
