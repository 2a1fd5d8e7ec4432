"""A smoke test that runs a model on a short prompt, for errors that files alone cannot show.

A model that generates text decodes a few tokens greedily; other models compute their hidden states or vectors.
"""

import math
from collections.abc import Sequence

import numpy as np

from ridgeline.core.checkpoint import ModelSource
from ridgeline.core.checkpoint.weight_loader import Progress
from ridgeline.core.models import SPEECH, family_of
from ridgeline.engine.encoder_features import EncoderFeatures
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.events import TokenEvent
from ridgeline.engine.generation_request import DEFAULT_PARAMS, GenerationRequest
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.setup import LoadedEngine, load_engine

TOKENS = 8
_PROMPT = "Once upon a time"
_FALLBACK = (1, 2, 3)  # token ids for a tokenizer that encodes the prompt as nothing
_STEP = 64  # positions per step, without those of an audio encoder


def smoke_run(source: ModelSource, progress: Progress | None = None) -> tuple[str, list[str]]:
    """Run a model on a short prompt and return a description of the output and the problems.

    Raises:
        ModelRefused: If the model cannot be loaded.
        ValueError: If the engine settings do not fit the model or this machine.
    """
    encoder_positions = source.config.count("max_source_positions", 1500) if family_of(source.config) in SPEECH else 0
    settings = EngineSettings(limits=Limits(tokens=_STEP + encoder_positions, requests=1), prefix_cache=False)
    loaded = load_engine(source, settings, progress=progress)
    prompt = loaded.tokenizer.encode(_PROMPT, parse_special=False)[:_STEP] or list(_FALLBACK)
    events = _run(loaded, prompt)
    problems = [f"the engine fails: {event.error}" for event in events if event.error is not None]
    states = [event.hidden for event in events if event.hidden is not None]
    if any(not math.isfinite(float(state.sum())) for state in states):
        problems.append("its hidden states hold NaN or infinity; fetch the checkpoint again")
    sampled = [event.token for event in events if event.token is not None]
    if any(not math.isfinite(token.logprob) for token in sampled if token.logprob is not None):
        problems.append("its logits hold NaN or infinity; fetch the checkpoint again")
    if loaded.vectors is not None:
        return f"{loaded.vectors.width} numbers for a text of {len(prompt)} tokens", problems
    if states:
        return f"hidden states of {len(prompt)} tokens", problems
    text = loaded.tokenizer.decode([token.token for token in sampled])
    return f"{len(sampled)} tokens after {_PROMPT!r}: {text!r}", problems


def _read(loaded: LoadedEngine, prompt: Sequence[int]) -> tuple[int, ...] | EncoderFeatures:
    """Return the encoder input: the prompt, or all-zero audio features for a speech model; empty without an encoder."""
    model = loaded.model
    if model.encoder_width:
        return EncoderFeatures.of(np.zeros((model.encoder_context, model.encoder_width), np.float32))
    return tuple(prompt) if loaded.engine.kv_cache_manager.crosses else ()


def _run(loaded: LoadedEngine, prompt: Sequence[int]) -> list[TokenEvent]:
    engine, begun = loaded.engine, loaded.text_processor.decoder_prompt(prompt)
    params = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True, logprobs=0)
    if not engine.traits.has_head:
        params = DEFAULT_PARAMS
    engine.add(GenerationRequest(begun, params, encoder=_read(loaded, prompt)))
    events: list[TokenEvent] = []
    while engine.has_work:
        events += engine.step()
    return events
