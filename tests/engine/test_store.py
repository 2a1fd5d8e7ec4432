"""KV memory as tensors: what it takes of the machine, and pages that go from one engine to another."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.collecting import finish_all
from engine.small_models import LLAMA, MIXED, poison_free_pages, small_model
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.kv_layout import KVGroup, KVLayout, KVSpec, StateSpec, group_layers
from ridgeline.core.ops.work import CAUSAL, sliding_window
from ridgeline.engine.engine import Engine
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.kv.kv_cache_manager import PageCopy
from ridgeline.engine.kv.page_exchange import PageExchange
from ridgeline.engine.kv.prefix import PageKey, extend_keys
from ridgeline.engine.kv.store import KVStore
from ridgeline.engine.runner import Runner
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.step_plan import StepPlan
from support.engines import GREEDY, complete, token_engine


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


def test_memory_is_taken_as_pages_are_used() -> None:
    """A pool of 1 GiB was filled with zeros before the first request came."""
    spec = KVSpec(8, 64, 64, CAUSAL, torch.bfloat16)
    layout = KVLayout(1 << 20, 1 << 10, 16, (KVGroup(spec, tuple(range(32)), 16),))
    before = resident()
    store = KVStore(layout)
    assert resident() - before < 64 << 20
    store.blank(range(1, 129))
    assert 100 << 20 < resident() - before < 256 << 20


def test_blank_and_copied_pages_hold_all_layers_of_their_group() -> None:
    specs = [KVSpec(2, 3, 5, sliding_window(window), torch.float32) for window in (None, 4, 4, 4)]
    layout = group_layers(specs, 4, 100)
    store = KVStore(KVLayout(layout.page_bytes, 6, 4, layout.groups))
    store.buffer[1:] = 0xFF
    store.blank([2, 5])
    assert [bool(page.any()) for page in store.buffer] == [False, True, False, True, True, False, True]
    for number, layer in store.layers.items():
        layer.k[3], layer.v[3] = number, -number
    store.copy([PageCopy(3, 6), PageCopy(6, 4)])
    last = layout.groups[-1].layers
    assert all(bool((store.layers[layer].k[4] == layer).all()) for layer in last)
    assert all(bool((store.layers[layer].v[4] == -layer).all()) for layer in last)


def exchange_of(engine: Engine) -> PageExchange:
    assert isinstance(engine.executor, Runner)
    return PageExchange(engine.kv_cache_manager, engine.executor.store)


@pytest.mark.parametrize("page_size", [1, 4, 7])
@pytest.mark.parametrize("config", [LLAMA, MIXED], ids=["full", "mixed"])
def test_a_request_goes_on_in_another_engine(config: dict[str, Any], page_size: int) -> None:
    """What one engine computed of a prompt is a cached prefix in another one, of which it has a part already; where
    there is no room nothing is kept."""
    model = small_model(config)
    prompt = [7 * position % 40 + 1 for position in range(28)]
    source = token_engine(model, page_size=page_size, prefix_cache=True)
    (wanted,) = complete(source, [prompt])
    target = token_engine(model, page_size=page_size, prefix_cache=True)
    poison_free_pages(target)
    complete(target, [prompt[:15]])
    given, taken = exchange_of(source), exchange_of(target)
    keys = list[PageKey]()
    extend_keys(keys, prompt, page_size, len(prompt) // page_size)
    positions, have = given.cached_positions(keys, len(prompt)), taken.cached_positions(keys, len(prompt))
    assert positions == source.kv_cache_manager.max_cached_prefix(len(prompt)) >= 20
    assert 0 <= have <= 15
    places = given.missing_pages(have, positions)
    rows = given.export_pages(keys, places)
    assert rows.shape == (len(places), taken.store.buffer.shape[1])
    pool = target.kv_cache_manager.pool
    held = [pool.allocate() for _ in range(pool.available)]
    assert not taken.import_pages(keys, have, places, rows)
    for page in held:
        pool.release(page)
    assert taken.import_pages(
        keys, 0, given.missing_pages(0, positions), given.export_pages(keys, given.missing_pages(0, positions))
    )
    pool.check()
    poison_free_pages(target)
    request = target.requests[target.add(GenerationRequest(prompt, replace(GREEDY, max_tokens=len(wanted))))]
    while target.has_work:
        assert not [event.error for event in target.step() if event.error is not None]
    assert request.output == wanted
    assert request.cached == positions, "the prompt was computed again"


@pytest.mark.parametrize("positions", [1024, 24])
def test_a_state_begins_with_zeros_and_disturbs_no_other_layer(positions: int) -> None:
    """Two recurrent layers between those of attention, which so have other numbers: the same tokens, with choices that
    wait for a page to begin on and, where there are few pages, with preemptions."""
    prompts = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5][: 3 + 2 * number] for number in range(5)]
    params = replace(GREEDY, n=2, max_tokens=14)

    def choices(engine: Engine) -> list[list[int]]:
        ids = [engine.add(GenerationRequest(prompt, params)) for prompt in prompts]
        ended = finish_all(engine)
        return [ended[request, choice].token_ids for request in ids for choice in (0, 1)]

    wanted = choices(token_engine(small_model(MIXED)))
    model = small_model(MIXED)
    state = StateSpec(77, torch.float32)
    model.kv_specs = (state, model.kv_specs[0], state, model.kv_specs[1])
    for layer, op in zip((1, 3), (op for _, op in model.ops() if isinstance(op, Attention)), strict=True):
        op.layer = layer
    engine = token_engine(
        model, positions=positions, prefix_cache=True, limits=Limits(chunk=4), on_step=lambda record: look(record.plan)
    )
    store = engine.executor.store  # type: ignore[attr-defined]
    groups = [index for index, group in enumerate(engine.kv_cache_manager.groups) if isinstance(group.spec, StateSpec)]
    begun = [0]

    def look(plan: StepPlan) -> None:
        for item in (item for item in plan.items if item.first):
            states = [item.pages[group] for group in groups]
            assert all(len(pages) == 1 and not store.buffer[pages[0]].any() for pages in states)
            begun[0] += 1

    store.buffer[1:] = 0xFF
    assert choices(engine) == wanted
    assert engine.stats.reused_tokens == 0, "the state at a prefix's end is not known"
    assert begun[0] == 10 + engine.stats.preemptions
    assert (engine.stats.preemptions > 0) == (positions == 24)
