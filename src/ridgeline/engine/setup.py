"""From a model's name to an engine that is ready: weights, KV memory, tokenizer, templates, sampling defaults."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ridgeline.checkpoint import load_model, model_folder, read_config
from ridgeline.checkpoint.fill import Progress
from ridgeline.checkpoint.tokenizer import tokenizer_of
from ridgeline.engine.engine import Engine
from ridgeline.engine.events import StepRecord
from ridgeline.engine.kv.ledger import KVLedger
from ridgeline.engine.kv.memory import KVLayout, default_budget, kv_layout
from ridgeline.engine.params import SamplingParams, unfollowed_keys
from ridgeline.engine.runner import Runner
from ridgeline.engine.scheduler import Limits
from ridgeline.models import ModelRefused
from ridgeline.models.model import Model
from ridgeline.text import ChatTemplates, OutputStream, Reasoning, Tokenizer, load_templates, tags_of


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How an engine is set up.

    kv_bytes: memory for keys and values; None for half of what is available, at most 4 GiB. limits: what a step may
    hold. page_size: positions a KV page. prefix_cache: keep and share the pages of equal prefixes.
    """

    kv_bytes: float | None = None
    limits: Limits = field(default_factory=Limits)
    page_size: int = 16
    prefix_cache: bool = True


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model and all that serves it.

    defaults: sampling as the folder's generation_config.json has it. unfollowed: what that file asks for beyond it.
    """

    engine: Engine
    model: Model
    layout: KVLayout
    tokenizer: Tokenizer
    templates: ChatTemplates | None
    defaults: SamplingParams
    unfollowed: tuple[str, ...] = ()

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights as stored, a tied head counted once."""
        return sum(parameter.nbytes for parameter in self.model.parameters())


def load_engine(
    name: str,
    settings: EngineSettings | None = None,
    *,
    dummy_weights: bool = False,
    progress: Progress | None = None,
    on_step: Callable[[StepRecord], None] | None = None,
) -> Loaded:
    """Load a model by folder or built-in name and put an engine around it.

    dummy_weights: random ones, for speed, not sense; text is bytes where there is no tokenizer. progress(bytes done,
    bytes in all): told while weights load. on_step: told of each step that ran. Raises ModelRefused (a ValueError) in
    one line.
    """
    settings = settings or EngineSettings()
    folder = model_folder(name)
    model = load_model(name, dummy_weights=dummy_weights, progress=progress)
    layout = _layout(model, settings)
    tokenizer = tokenizer_of(name, or_bytes=dummy_weights)
    templates = load_templates(folder, tokenizer)
    generation = read_generation_config(folder)
    engine = Engine(
        Runner(model, layout, settings.limits.tokens),
        KVLedger(
            layout.specs,
            (layout.pages,) * len(layout.specs),
            layout.page_size,
            prefix_cache=settings.prefix_cache,
        ),
        settings.limits,
        context=model.context,
        vocabulary=model.vocabulary,
        eos_ids=[i for i in _eos_ids(name, generation, tokenizer) if 0 <= i < model.vocabulary],
        open_stream=_stream_opener(tokenizer, templates),
        on_step=on_step,
    )
    return Loaded(
        engine, model, layout, tokenizer, templates, _defaults(folder, generation), unfollowed_keys(generation)
    )


def _defaults(folder: Path, generation: dict[str, Any]) -> SamplingParams:
    try:
        return SamplingParams.from_generation_config(generation)
    except ValueError as error:
        raise ModelRefused(f"{folder / 'generation_config.json'}: {error}") from None


def _layout(model: Model, settings: EngineSettings) -> KVLayout:
    weights = sum(parameter.nbytes for parameter in model.parameters())
    budget = default_budget(weights) if settings.kv_bytes is None else settings.kv_bytes
    return kv_layout(model, budget, settings.page_size, most_tokens=model.context * settings.limits.requests)


def read_generation_config(folder: Path) -> dict[str, Any]:
    """The folder's generation_config.json; empty where there is none. Raises ModelRefused for a broken one."""
    path = folder / "generation_config.json"
    if not path.is_file():
        return {}
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelRefused(f"{path} is not valid JSON: {error}; fetch the file again") from None
    if not isinstance(values, dict):
        raise ModelRefused(f"{path} holds no JSON object; fetch the file again")
    return values


def _eos_ids(name: str, generation: dict[str, Any], tokenizer: Tokenizer) -> frozenset[int]:
    """The ids that end a text: of generation_config.json, else of config.json, and always the tokenizer's own."""
    stated = generation.get("eos_token_id", read_config(name).values.get("eos_token_id"))
    ids: Sequence[Any] = stated if isinstance(stated, list) else [stated]
    return frozenset(i for i in ids if isinstance(i, int)) | frozenset(tokenizer.eos_ids)


def _stream_opener(
    tokenizer: Tokenizer, templates: ChatTemplates | None
) -> Callable[[SamplingParams, Sequence[int]], OutputStream]:
    """Makes a request's way from tokens to text; reasoning is split off where the model's template writes its tags."""
    tags = _reasoning_tags(templates)

    def open_stream(params: SamplingParams, prompt: Sequence[int]) -> OutputStream:
        reasoning = Reasoning(tokenizer, prompt, tags) if tags is not None else None
        # After a control token (the start of a text, an assistant's turn) a new text begins.
        continues = prompt[-1] not in tokenizer.special_ids
        return OutputStream(
            tokenizer, stops=params.stop, include_stop=params.include_stop, reasoning=reasoning, continues=continues
        )

    return open_stream


def _reasoning_tags(templates: ChatTemplates | None) -> tuple[str, str] | None:
    """The thinking tags that one of a model's templates writes, or None."""
    found = (tags_of(template.source) for template in templates.by_name.values()) if templates is not None else ()
    return next((tags for tags in found if tags is not None), None)
