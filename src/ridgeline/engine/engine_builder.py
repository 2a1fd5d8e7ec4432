"""Functions that build an engine around a loaded model: token ids in, token ids out."""

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
from ridgeline.engine.model_traits import ModelTraits
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.runner import Runner
from ridgeline.engine.scheduler import Limits

if TYPE_CHECKING:
    from ridgeline.engine.speculation.speculator import Speculator
    from ridgeline.engine.structured_output import StructuredOutputManager

_WARMING = (5, 64)  # prompt lengths; attention tiles them in two sizes
_ANY_BUDGET = 1e15  # bytes; the number of positions is the limit


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
    guides: "StructuredOutputManager | None" = None,
    adapters: Mapping[str, bytes] | None = None,
    speculator: "Speculator | None" = None,
    on_step: Callable[[StepRecord], None] | None = None,
    clock: Callable[[], int] = WALL_CLOCK,
) -> Engine:
    """Make an engine for a model.

    Args:
        model: The model.
        layout: The layout of the KV pages.
        limits: The limits of a step.
        context: Maximum number of positions of a sequence; by default the model's.
        executor: Runs the plans; by default a Runner.
        prefix_cache: Whether requests share the KV pages of equal prefixes.
        seed: The seed from which the seeds of requests without one are drawn.
        eos_ids: Token ids that end a text.
        guides: Makes the constraints of structured outputs.
        adapters: A digest of the contents of each LoRA adapter, by its name.
        speculator: Guesses next tokens, which steps verify.
        on_step: Receives a record of each step that ran.
        clock: Returns the time in nanoseconds.
    """
    return Engine(
        executor or Runner(model, layout),
        KVCacheManager(layout, limits.max_request_tokens, prefix_cache=prefix_cache),
        limits,
        ModelTraits.of(model, context),
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
    """Make an engine for measurements: a KV cache of a given number of positions, without a prefix cache."""
    layout = kv_layout(model, _ANY_BUDGET, most_tokens=positions)
    limits = Limits(tokens=positions)
    return build_engine(model, layout, limits, executor=executor(model, layout), prefix_cache=False, on_step=on_step)


def engine_with_requests(
    model: Model,
    prompts: Sequence[int],
    tokens: int,
    on_step: Callable[[StepRecord], None] | None = None,
    executor: MakeExecutor = Runner,
) -> Engine:
    """Make an engine for measurements, with queued requests that sample greedily.

    Args:
        model: The model.
        prompts: Lengths of the prompts.
        tokens: Number of new tokens of each request.
        on_step: Receives a record of each step that ran.
        executor: Makes the executor.
    """
    positions = sum(length + tokens + 16 for length in prompts)
    engine = build_minimal_engine(model, positions, on_step, executor)
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=tokens)
    for length in prompts:
        # Each position has another token: a router would send equal ones to the same experts.
        engine.add(GenerationRequest([position % model.vocabulary for position in range(length)], params))
    return engine


def run_requests(
    model: Model,
    prompts: Sequence[int],
    tokens: int,
    now: Callable[[], float],
    executor: MakeExecutor = Runner,
) -> Iterator[tuple[Work, float]]:
    """Run requests in one batch and yield the work and the duration of each step.

    Args:
        model: The model.
        prompts: Lengths of the prompts.
        tokens: Number of new tokens of each request.
        now: Returns the time in seconds.
        executor: Makes the executor.

    Yields:
        The work of a step, and its seconds, scheduler and sampler included.
    """
    works: list[Work] = []
    engine = engine_with_requests(model, prompts, tokens, lambda record: works.append(record.work), executor)
    while engine.has_work:
        start = now()
        engine.step()
        yield works[-1], now() - start


def warm_up(engine: Engine) -> None:
    """Run short requests one by one, so that GPU kernels compile and a decode step is captured before real requests.

    The first use of a GPU kernel compiles it, which takes seconds, and the first decode step is captured. The pages of
    these prompts stay in the prefix cache.
    """
    on_step, engine.on_step = engine.on_step, None
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=2, seed=0)
    try:
        for length in _WARMING:
            prompt = [position % engine.traits.vocabulary for position in range(min(length, engine.traits.context - 2))]
            engine.add(GenerationRequest(prompt, params))
            while engine.has_work:
                engine.step()
    finally:
        engine.on_step = on_step
