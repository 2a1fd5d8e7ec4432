"""The engine behind `serve --priced`: a real scheduler and KV cache without a model, in real time.

It takes the place of a loaded model: steps last as long as they are priced on a GPU, and responses are filler text. The
server's engine process calls `priced_engine`, whose name it gets in its start message, instead of loading a model
(engine/worker/engine_process.py).
"""

from collections.abc import Collection, Sequence
from pathlib import Path

from typing_extensions import override

from ridgeline.core.checkpoint.source import ModelSource, open_source
from ridgeline.core.checkpoint.source_tokenizer import tokenizer_of
from ridgeline.core.text import Tokenizer
from ridgeline.core.text.byte_tokenizer import ByteTokenizer
from ridgeline.engine.engine_builder import build_engine
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.kv.page_count import kv_layout
from ridgeline.engine.setup import LoadedEngine, definition_of
from ridgeline.engine.structured_output import OutputConstraint, StructuredOutputManager
from ridgeline.engine.structured_output_params import StructuredOutputs
from ridgeline.engine.text_processor import load_text_processor
from ridgeline.engine.worker.engine_process import EngineStart
from ridgeline.insight.simulate.machine_setup import machine_of
from ridgeline.insight.simulate.paced_executor import PacedExecutor
from ridgeline.insight.simulate.replica import Machine, StepPricer
from ridgeline.price.device import Device
from ridgeline.price.engine_profile import default_engine
from ridgeline.price.plan.scenario import Deployment, ModelCache, Scenario

MAKER = f"{__name__}:priced_engine"

FILLER = " This is filler: no model ran, each step only took as long as its price says."

CHAT_TEMPLATE = Path(__file__).with_name("chat.jinja")
"""The chat template for models without a tokenizer, such as a bare config or a catalogue entry."""


def priced_engine(start: EngineStart) -> LoadedEngine:
    """Build the priced engine that an engine process's start message describes.

    Raises:
        ValueError: If the model is unsupported, if it or its settings do not fit the GPU, or if its tokenizer belongs
            to another model.
    """
    settings, device = start.settings, start.device
    source = open_source(start.model)
    assert device is not None, "a priced engine needs a device"
    machine = served_machine(source, settings, device, start.devices)
    model, layout = machine.case.model, machine.layout
    texts = load_text_processor(
        source, or_bytes=True, chat_template=settings.chat_template, reasoning=settings.reasoning
    )
    pricer = StepPricer(machine.case.price, machine.case.device)
    engine = build_engine(
        model,
        layout,
        machine.limits,
        context=machine.context,
        executor=PacedExecutor(pricer, filler_ids(texts.tokenizer, model.vocabulary)),
        prefix_cache=machine.prefix_cache,
        guides=_NoForms(texts.tokenizer, model.vocabulary),
    )
    definition = definition_of(model, source)
    return LoadedEngine(engine, model, machine.case.price, layout, texts, definition=definition)


def served_machine(source: ModelSource, settings: EngineSettings, device: Device, devices: int) -> Machine:
    """Return the machine that a server's settings describe, on a number of GPUs.

    Raises:
        ValueError: If the model is unsupported, or if the settings do not fit the model or the GPU's memory.
    """
    share = {} if settings.memory_share is None else {"utilization": settings.memory_share}
    setup = Deployment(
        device, devices, settings.weights, settings.kv, engine=default_engine(device), usual=True, **share
    )
    case = ModelCache(source.with_rope(settings.rope).config).scenario(setup)
    machine = machine_of(
        case,
        settings.limits,
        context=settings.context,
        pages=_stated_pages(case, settings),
        page_size=settings.page_size,
        prefix_cache=settings.prefix_cache,
    )
    layout, chunk = machine.layout, machine.limits.max_request_tokens
    if layout.kept(machine.context, min(machine.context, chunk)) > layout.pages:
        most = layout.capacity(chunk)
        raise ValueError(
            f"next to the weights, {device.title} has room for {most:,} tokens of one request, but the context is "
            f"{machine.context:,}: give --max-model-len {most} or less"
        )
    return machine


def _stated_pages(case: Scenario, settings: EngineSettings) -> int | None:
    """Return the number of pages in the KV memory that the settings state, or None if they state none."""
    return None if settings.kv_bytes is None else kv_layout(case.model, settings.kv_bytes, settings.page_size).pages


def filler_ids(tokenizer: Tokenizer, vocabulary: int) -> list[int]:
    """Return the token ids of `FILLER` that are in the model's vocabulary.

    Raises:
        ValueError: If none is, because the tokenizer belongs to another model.
    """
    ids = [token for token in tokenizer.encode(FILLER, add_special=False, parse_special=False) if token < vocabulary]
    if not ids:
        raise ValueError(
            "the tokenizer belongs to another model, because its ids exceed this model's vocabulary; give the model's "
            "own tokenizer"
        )
    return ids


def without_text(source: ModelSource) -> bool:
    """Return whether a model has no tokenizer, so that its text is encoded as bytes."""
    return isinstance(tokenizer_of(source, or_bytes=True), ByteTokenizer)


class _NoForms(StructuredOutputManager):
    """A structured-output manager that rejects all constraints, because filler text satisfies none."""

    @override
    def constraint_for(
        self, outputs: StructuredOutputs | None, prompt: Sequence[int], ends: Collection[int], budget: int | None = None
    ) -> OutputConstraint:
        raise ValueError(
            "this server runs no model, so its filler text cannot follow a grammar or schema: leave structured outputs "
            "out"
        )
