"""The loading of a model by name into a ready engine: weights, KV memory, tokenizer, templates, sampling defaults."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ridgeline.backends.model_loader import prepare_on_cpu, prepare_on_gpu
from ridgeline.core.checkpoint import ModelSource
from ridgeline.core.checkpoint.adapter import Adapter, adapt, fill_adapters, read_adapter
from ridgeline.core.checkpoint.checkpoint_matching import match_to_source
from ridgeline.core.checkpoint.embedding_config import EmbeddingConfig, model_of, read_embedding
from ridgeline.core.checkpoint.load_report import LoadReport
from ridgeline.core.checkpoint.source import as_source
from ridgeline.core.checkpoint.weight_loader import Progress, load_weights
from ridgeline.core.models import family_of
from ridgeline.core.models.building import build_to_run
from ridgeline.core.models.common.embedder import Embedder
from ridgeline.core.models.common.fields import DivisionRefused, Fields
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.recipes import quality_warning
from ridgeline.core.models.registry import image_generator_of
from ridgeline.core.models.rope_override import offer_longer_context
from ridgeline.core.ops.kv_layout import KVLayout
from ridgeline.core.ops.number_formats import format_of
from ridgeline.core.ops.shard import Shard
from ridgeline.core.text import ChatTemplates, Tokenizer
from ridgeline.engine.engine import Engine
from ridgeline.engine.engine_builder import build_engine
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.events import StepRecord
from ridgeline.engine.kv_budget import fit_kv_layout
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.placement import device_named
from ridgeline.engine.ranks.leader import FollowerRanks
from ridgeline.engine.ranks.rank_processes import RankProcesses, check_ranks
from ridgeline.engine.runner import Runner
from ridgeline.engine.scheduler import MAX_LIMIT
from ridgeline.engine.speculation.speculation_setup import Draft, check_speculation, draft_of, speculator_of
from ridgeline.engine.structured_output import StructuredOutputManager
from ridgeline.engine.text_processor import TextProcessor, load_text_processor
from ridgeline.engine.worker.engine_messages import EngineInfo, VectorInfo
from ridgeline.price.device import Device
from ridgeline.price.error_interval import Kind, intervals_of_class, own_intervals
from ridgeline.price.interconnect import Interconnect
from ridgeline.price.price import Price
from ridgeline.price.unmodelled import unmodelled_bytes
from ridgeline.util.host import check_threads, threads_for


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """A loaded model with its engine, text processor and cost model."""

    engine: Engine
    """The engine that runs the model."""
    model: Model
    """The loaded model, with weights."""
    price: Price
    """The cost model, which predicts what a step of the model must cost."""
    layout: KVLayout
    """The layout of the KV pages."""
    text_processor: TextProcessor
    """The tokenizer, chat templates and sampling defaults."""
    loading: LoadReport | None = None
    """The report on loading the weights; None for random ones."""
    adapters: tuple[Adapter, ...] = ()
    """The LoRA adapters, in the order of their numbers."""
    draft: Draft | None = None
    """The draft model of speculative decoding; None without one."""
    interconnect: Interconnect | None = None
    """The interconnect of the model's ranks; None for a single rank."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The config that the model was built from."""
    warnings: tuple[str, ...] = ()
    """Lines on how the model's files or the settings change its responses."""
    definition: str = ""
    """The class that defines the model and its package, as in `EngineInfo.definition`; "" for a family's model."""

    def with_interconnect(self, device: Device) -> Device:
        """Return a device with the measured interconnect of this engine's ranks."""
        if self.interconnect is None:
            return device
        return replace(device, link=self.interconnect, all_reduce=self.interconnect.name)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model."""
        return self.text_processor.tokenizer

    @property
    def templates(self) -> ChatTemplates | None:
        """The chat templates of the model; None if it has none."""
        return self.text_processor.templates

    @property
    def defaults(self) -> SamplingParams:
        """The sampling parameters in the checkpoint's generation_config.json."""
        return self.text_processor.defaults

    @property
    def weight_bytes(self) -> int:
        """The bytes of the weights as stored; a tied head counts once."""
        return sum(parameter.nbytes for parameter in self.model.parameters())

    @property
    def resident_bytes(self) -> float:
        """The bytes in use between two steps: weights, KV cache, captured decode steps and the draft model."""
        steps = self.model.backend.replayed_steps(self.model)
        held = None if steps is None else steps.held_bytes(self.model)
        draft = 0 if self.draft is None else self.draft.kept_bytes
        return self.weight_bytes + self.layout.nbytes + (held or 0) + draft

    @property
    def device(self) -> torch.device:
        """The device that the model runs on."""
        return next(self.model.parameters()).device

    @property
    def on_gpu(self) -> bool:
        """Whether the model runs on a GPU, not the CPU."""
        return self.device.type == "cuda"

    def info(self, device: Device | None = None) -> EngineInfo:
        """Return a description of the engine: its limits, memory and device, for users in other processes.

        Args:
            device: The device for which step times are predicted, if any.
        """
        ledger, limits, layout = self.engine.kv_cache_manager, self.engine.scheduler.limits, self.layout
        return EngineInfo(
            context=self.engine.traits.context,
            vocabulary=self.engine.traits.vocabulary,
            capacity=ledger.capacity(),
            page_size=ledger.page_size,
            pages=ledger.pool.size,
            requests=limits.requests,
            step_tokens=limits.tokens,
            threads=torch.get_num_threads(),
            weight_bytes=self.weight_bytes * self.price.devices,  # each rank has the same number
            kv_bytes=layout.nbytes * self.price.devices,
            device=None if device is None else device.title,
            calibrated=device is not None and device.calibrated,
            stale_calibration="" if device is None else device.stale_calibration,
            dtype=str(self.model.storage.dtype).removeprefix("torch."),
            adapters=tuple(adapter.name for adapter in self.adapters),
            vectors=self.vectors,
            encoder_context=self.engine.traits.encoder_context,
            encoder_width=self.engine.traits.encoder_width,
            held=layout.holds() if layout.groups else "",
            concurrency=layout.concurrency(self.engine.traits.context, self.engine.traits.encoder_context),
            unshared=layout.why_no_prefix_cache,
            warnings=self.warnings,
            definition=self.definition,
            predicted_intervals={} if device is None else self._predicted_intervals(device),
        )

    def _predicted_intervals(self, device: Device) -> dict[str, tuple[float, float]]:
        """Return the factors on predicted times by phase."""
        weights = self.model.recipe or format_of(self.model.storage.dtype).name
        found, origin = own_intervals(device, weights), self.model.traced_from
        if origin:
            found = intervals_of_class(found, origin, unmodelled_bytes(self.model, self.price).fused)
        phases: dict[str, Kind] = {"prefill": "prefill", "decode": "decode", "mixed": "load"}
        return {phase: (found[kind].low, found[kind].high) for phase, kind in phases.items()}

    @property
    def vectors(self) -> VectorInfo | None:
        """The description of the vectors or scores that the model gives; None for a model that generates."""
        model = self.model
        if not isinstance(model, Embedder):
            return None
        return VectorInfo(
            model.width, model.mode, model.labels, model.applies_sigmoid, model.vocabulary, model.token_types
        )


def load_engine(
    model: ModelSource | str,
    settings: EngineSettings | None = None,
    *,
    dummy_weights: bool = False,
    progress: Progress | None = None,
    on_step: Callable[[StepRecord], None] | None = None,
    draws: bool = False,
    threads: int | None = None,
) -> LoadedEngine:
    """Load a model and build an engine for it.

    Args:
        model: A source, or a name as `open_source` takes it.
        settings: The settings of the engine.
        dummy_weights: Whether to use random weights, for measuring speed; without a tokenizer, text is bytes.
        progress: Receives the bytes loaded and the bytes in total while weights load.
        on_step: Receives a record of each step that ran.
        draws: Whether to load the model that generates the tokens of images, if the checkpoint contains one.
        threads: Number of threads of each of several ranks; by default an equal part of the cores.

    Raises:
        ModelRefused: (a ValueError) If the model cannot be loaded; in one line.
        ValueError: If a setting does not fit the model or the machine.
    """
    settings = settings or EngineSettings()
    source = as_source(model).with_rope(settings.rope)
    place = device_named(settings.device)
    family = image_generator_of(source.config) if draws else family_of(source.config)
    embedding = None if draws else read_embedding(source)
    built = (
        build_to_run(source.config, family=family, weights=settings.weights, kv=settings.kv)
        if draws
        else _first_rank(source, embedding, settings)
    )
    if not dummy_weights:
        match_to_source(built, family, source)
    if settings.ranks > 1:
        check_ranks(built, settings.adapters, place, source.name, draws=draws)
    adapters = [read_adapter(name, path, settings.adapter_rank) for name, path in settings.adapters.items()]
    adapt(built, family, adapters)
    context = _context(built, settings, embedding, source.config)
    if built.needs_whole_prompt:  # a step must hold a text of any length that the model takes
        tokens = max(settings.limits.tokens, min(context, MAX_LIMIT))
        settings = replace(settings, limits=replace(settings.limits, tokens=tokens))
    price = Price(built, settings.ranks)
    speculation = settings.speculation
    if speculation is not None:
        check_speculation(speculation, built, source.name)
    draft = None if speculation is None else draft_of(speculation)
    layout = fit_kv_layout(source, built, price, settings, context, adapters, place, draft)
    loading = load_weights(built, source, dummy_weights=dummy_weights, progress=progress, family=family, device=place)
    if place.type == "cpu":
        prepare_on_cpu(built)
    fill_adapters(built, family, adapters)
    if place.type != "cpu":
        prepare_on_gpu(built, place)
    texts = load_text_processor(
        source, or_bytes=dummy_weights, chat_template=settings.chat_template, reasoning=settings.reasoning
    )
    if draft is not None:
        draft = draft.load(texts.tokenizer, layout, place, dummy_weights=dummy_weights)
    guides = StructuredOutputManager(texts.tokenizer, built.vocabulary, texts.reasoning_format, settings.grammar_bytes)
    others = link = None
    if settings.ranks > 1:
        others = _other_ranks(source.name, built, settings, layout.pages, threads, dummy_weights=dummy_weights)
        link = others.link()
    engine = build_engine(
        built,
        layout,
        settings.limits,
        context=context,
        executor=Runner(built, layout, others=others, eager=settings.eager),
        prefix_cache=settings.prefix_cache,
        seed=settings.seed,
        eos_ids=[i for i in _eos_ids(source, texts.tokenizer) if 0 <= i < built.vocabulary and not draws],
        adapters={adapter.name: adapter.digest for adapter in adapters},
        guides=None if draws else guides,  # structured outputs restrict text, not image tokens
        speculator=None if speculation is None else speculator_of(speculation, built, draft, settings.limits),
        on_step=on_step,
    )
    config = source.config.values
    warnings = _warnings(built, texts.tokenizer, None if dummy_weights else settings.weights, loading)
    definition = definition_of(built, source)
    return LoadedEngine(
        engine, built, price, layout, texts, loading, tuple(adapters), draft, link, config, warnings, definition
    )


def definition_of(model: Model, source: ModelSource) -> str:
    """Return the class that defines a source's model and its package, as `EngineInfo.definition`."""
    return f"{family_of(source.config).architecture} of {model.traced_from}" if model.traced_from else ""


def _first_rank(source: ModelSource, embedding: EmbeddingConfig | None, settings: EngineSettings) -> Model:
    """Build the model, or the part that belongs to the first of several ranks."""
    try:
        return model_of(source, embedding, settings.weights, settings.kv, Shard(0, settings.ranks))
    except DivisionRefused as error:  # the message names the option of `plan`
        raise DivisionRefused(str(error).replace("--devices", "--tensor-parallel")) from None


def _other_ranks(
    name: str, first: Model, settings: EngineSettings, pages: int, threads: int | None, *, dummy_weights: bool
) -> FollowerRanks:
    """Start the processes of the other ranks, and divide the cores among all ranks."""
    own = threads_for(0, threads, settings.ranks)
    torch.set_num_threads(own)
    return FollowerRanks(first, RankProcesses.start(name, settings, pages, own, dummy_weights=dummy_weights))


def _warnings(model: Model, tokenizer: Tokenizer, weights: str | None, loading: LoadReport | None) -> tuple[str, ...]:
    """Return lines on how a model's files, and the format to which its weights are quantised, change its responses."""
    notes = (*(() if model.tables is None else model.tables.notes), *(() if loading is None else loading.casts.notes))
    costly = None if weights is None else quality_warning(weights)
    return (*notes, *(line for line in (tokenizer.file_fault_note, costly) if line))


def load_with_threads(
    model: ModelSource | str,
    settings: EngineSettings | None = None,
    *,
    dummy_weights: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> tuple[LoadedEngine, int]:
    """Load an engine as `load_engine` does, and determine how many threads torch should compute with.

    Returns:
        The engine, and the number of threads: by default one per core, and one for a small model.

    Raises:
        ValueError: If there are more threads than cores, before weights are read; or as in `load_engine`.
    """
    if threads is not None:
        check_threads(threads)
    loaded = load_engine(model, settings, dummy_weights=dummy_weights, progress=progress, threads=threads)
    return loaded, threads_for(loaded.weight_bytes, threads, 1 if settings is None else settings.ranks)


def _context(model: Model, settings: EngineSettings, embedding: EmbeddingConfig | None, config: Fields) -> int:
    """Return the maximum number of positions of a sequence.

    Raises:
        ValueError: If the settings ask for more than the model has.
    """
    if settings.context is None:
        most = None if embedding is None else embedding.most_tokens
        return model.context if most is None else min(most, model.context)
    if settings.context > model.context:
        raise ValueError(
            f"--context is {settings.context:,}, but the model's context is {model.context:,}: give at most that"
            f"{offer_longer_context(config, settings.context)}"
        )
    return settings.context


def _eos_ids(source: ModelSource, tokenizer: Tokenizer) -> frozenset[int]:
    """Return the ids that end a text: those of generation_config.json, else config.json, plus the tokenizer's own."""
    stated = source.generation.get("eos_token_id", source.config.values.get("eos_token_id"))
    ids: Sequence[Any] = stated if isinstance(stated, list) else [stated]
    return frozenset(i for i in ids if isinstance(i, int)) | frozenset(tokenizer.eos_ids)
