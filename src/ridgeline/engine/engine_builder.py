"""Engines around models, with folder or without: token ids in, token ids out."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.kv_layout import KVLayout
from ridgeline.core.ops.work import Work
from ridgeline.engine.engine import WALL_CLOCK, Engine, Executor
from ridgeline.engine.events import StepRecord
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.kv.kv_cache_manager import KVCacheManager
from ridgeline.engine.kv.page_count import kv_layout
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.runner import Runner
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.structured_output import StructuredOutputManager

if TYPE_CHECKING:
    from ridgeline.engine.speculation.speculator import Speculator

_WARMING = (5, 64)  # tokens of prompts, which are attended in tiles of two sizes
_ANY_BUDGET = 1e15  # bytes; it is the positions that say how much


def build_engine(
    model: Model,
    layout: KVLayout,
    limits: Limits,
    *,
    context: int | None = None,
    executor: Executor | None = None,
    prefix_cache: bool = True,
    seed: int | None = None,
    eos_ids: Collection[int] = (),
    guides: StructuredOutputManager | None = None,
    adapters: Mapping[str, bytes] | None = None,
    speculator: "Speculator | None" = None,
    on_step: Callable[[StepRecord], None] | None = None,
    clock: Callable[[], int] = WALL_CLOCK,
) -> Engine:
    """Make an engine for a model. context: positions a sequence may have, by default the model's. executor: what runs
    its plans; by default a Runner. guides, adapters, speculator, clock: as Engine.
    """
    return Engine(
        executor or Runner(model, layout),
        KVCacheManager(layout, limits.max_request_tokens, prefix_cache=prefix_cache),
        limits,
        context=model.context if context is None else context,
        vocabulary=model.vocabulary * model.segments,
        reaches=model.reaches,
        has_head=model.has_head,
        whole=model.whole,
        pooled=model.pooled,
        encoder_width=model.encoder_width,
        encoder_context=model.encoder_context,
        outputs=model.sampled_vocab_size,
        images=model.images,
        eos_ids=eos_ids,
        seed=seed,
        guides=guides,
        adapters=adapters,
        speculator=speculator,
        on_step=on_step,
        clock=clock,
    )


MakeExecutor = Callable[[Model, KVLayout], Executor]


def build_minimal_engine(
    model: Model,
    positions: int,
    on_step: Callable[[StepRecord], None] | None = None,
    executor: MakeExecutor = Runner,
) -> Engine:
    """An engine whose KV memory holds `positions` positions, without a prefix cache: for measurements, experiments."""
    layout = kv_layout(model, _ANY_BUDGET, most_tokens=positions)
    limits = Limits(tokens=positions)
    return build_engine(model, layout, limits, executor=executor(model, layout), prefix_cache=False, on_step=on_step)


def run_requests(
    model: Model,
    prompts: Sequence[int],
    tokens: int,
    now: Callable[[], float],
    executor: MakeExecutor = Runner,
) -> Iterator[tuple[Work, float]]:
    """Run requests side by side, with prompts of these lengths and so many new tokens each. After each step: what it
    asked, and its seconds by the clock `now`, scheduler and sampler included.
    """
    works: list[Work] = []
    positions = sum(length + tokens + 16 for length in prompts)
    engine = build_minimal_engine(model, positions, lambda record: works.append(record.work), executor)
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=tokens)
    for length in prompts:
        # Every position another token, or a router would send all to the same experts.
        engine.add(GenerationRequest([position % model.vocabulary for position in range(length)], params))
    while engine.has_work:
        start = now()
        engine.step()
        yield works[-1], now() - start


def warm_up(engine: Engine) -> None:
    """Run short requests that nobody is told of, one after the other: kernels for a card are compiled when they are
    first asked for, in seconds, and so is a decode step captured. Their pages stay for prompts that begin the same.
    """
    told, engine.on_step = engine.on_step, None
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=2, seed=0)
    try:
        for length in _WARMING:
            prompt = [position % engine.vocabulary for position in range(min(length, engine.context - 2))]
            engine.add(GenerationRequest(prompt, params))
            while engine.has_work:
                engine.step()
    finally:
        engine.on_step = told
