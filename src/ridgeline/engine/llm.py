"""The engine for a script: `LLM("folder").generate(["Once upon a time"])`."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self, overload

import torch
from typing_extensions import override

from ridgeline.core.checkpoint.source import ModelSource
from ridgeline.core.checkpoint.weight_loader import Progress
from ridgeline.core.models import ModelRefused
from ridgeline.engine.bounds import numbered
from ridgeline.engine.encoder_features import EncoderFeatures
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.events import Event
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.result import Completion
from ridgeline.engine.setup import LoadedEngine, load_with_threads
from ridgeline.engine.text_processor import Messages, Prompt, checked


class TextEngine:
    """A loaded engine with an output processor, in one process: prompts of token ids in, events with text out."""

    def __init__(self, loaded: LoadedEngine) -> None:
        self.engine, self.texts = loaded.engine, loaded.text_processor
        self.output_processor = self.texts.new_output_processor()

    def add(self, spec: GenerationRequest) -> int:
        """Queue a request, as `Engine.add` does, and return its id.

        The output processor finds its stop strings. If the model has an encoder, the encoder reads the prompt.
        """
        self.texts.check(spec.params)
        own = self.texts.for_engine(spec)
        request = self.engine.add(own)
        try:
            self.output_processor.open(request, own.prompt, spec.params, sections=spec.separate_reasoning)
        except BaseException:
            self.engine.abort(request)
            raise
        return request

    def step(self) -> list[Event]:
        """Run one step of the engine and return its events with text; stop the choices whose text has ended."""
        events, stops = self.output_processor.take(self.engine.step())
        for stop in stops:
            self.engine.stop(*stop)
        return events

    def abort(self, request: int) -> list[Event]:
        """End a request; return its last events, with the text that was held back."""
        return self.output_processor.take(self.engine.abort(request))[0]


class LLM:
    """A model that generates text in the caller's thread, for one caller at a time; `AsyncLLM` serves many."""

    def __init__(
        self,
        model: ModelSource | str,
        settings: EngineSettings | None = None,
        *,
        weights: str | None = None,
        kv: str | None = None,
        device: str | None = None,
        dummy_weights: bool = False,
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Load a model.

        Args:
            model: A checkpoint folder, a GGUF file, a built-in name, or the source of one.
            settings: The settings of the engine.
            weights: Replaces the weight format of the settings.
            kv: Replaces the KV cache format of the settings.
            device: Replaces the device of the settings.
            dummy_weights: Whether to use random weights, for measuring speed.
            threads: Number of threads that torch computes with, in the whole process; by default one per core, and one
                for a small model.
            progress: Receives the bytes loaded and the bytes in total while weights load.

        Raises:
            ModelRefused: If the model cannot be loaded.
            ValueError: If there are more threads than cores, or a setting does not fit.
        """
        self.name = model if isinstance(model, str) else model.name
        own = settings or EngineSettings()
        own = replace(own, weights=weights or own.weights, kv=kv or own.kv, device=device or own.device)
        loaded, computing = load_with_threads(
            model, own, dummy_weights=dummy_weights, threads=threads, progress=progress
        )
        self._take(loaded, computing)
        torch.set_num_threads(self.threads)

    @classmethod
    def around(cls, loaded: LoadedEngine, name: str) -> Self:
        """Return an LLM for an engine that is already loaded, with the current number of torch threads.

        Raises:
            ModelRefused: If the model gives vectors or scores instead of text.
        """
        llm = cls.__new__(cls)
        llm.name = name
        llm._take(loaded, torch.get_num_threads())
        return llm

    def _take(self, loaded: LoadedEngine, threads: int) -> None:
        if loaded.vectors is not None:
            raise ModelRefused(f"{self.name} outputs embeddings or scores and generates no text: use ridgeline embed")
        self.loaded, self.threads = loaded, threads
        self.engine, self.tokenizer = loaded.engine, loaded.tokenizer
        self._texts = TextEngine(loaded)

    @override
    def __repr__(self) -> str:
        context, held = self.engine.traits.context, self.loaded.layout.holds()
        return f"LLM({self.name!r}, context {context:,}, KV cache: {held}, threads {self.threads})"

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        adapter: str | Sequence[str] = "",
    ) -> list[Completion]:
        """Complete prompts (text or token ids) together, in one continuous batch.

        A request that fails later has an `error`.

        Args:
            prompts: One prompt, or a list of them.
            params: Sampling parameters, for all prompts or one for each; by default those of the model's
                generation_config.json.
            adapter: Name of the LoRA adapter (EngineSettings.adapters), "" for none; for all prompts or one for each.

        Raises:
            ValueError: If a prompt or a parameter cannot run; then no request runs.
        """
        self._refuse_second_caller()
        given, ids = _each(prompts), list[list[int]]()
        for place, prompt in enumerate(given):
            with numbered("prompt", place, len(given)):
                ids.append(self.encode(prompt))
        each = self._params_of(ids, params)
        adapters = [adapter] * len(ids) if isinstance(adapter, str) else adapter
        if len(adapters) != len(ids):
            raise ValueError(
                f"{len(ids)} prompts have {len(adapters)} adapters: give one adapter for each prompt, or one for all"
            )
        added: dict[int, Completion] = {}
        try:
            for place, (prompt, own, name) in enumerate(zip(ids, each, adapters, strict=True)):
                with numbered("prompt", place, len(ids)):
                    request = self._texts.add(GenerationRequest(prompt, own, adapter=name))
                    added[request] = Completion.empty(prompt, own.n)
            while self.engine.has_work:
                for event in self._texts.step():
                    added[event.request].take([event])
        finally:
            self._abort(added)
        return list(added.values())

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        adapter: str = "",
        images: EncoderFeatures | None = None,
    ) -> Generator[Event, None, None]:
        """Complete one prompt and yield its events. Leaving the loop early aborts the request.

        Args:
            prompt: Text or token ids.
            params: Sampling parameters; by default those of the model's generation_config.json.
            adapter: Name of the LoRA adapter, "" for none.
            images: The patches of the images in the prompt, whose places are in the prompt's ids.
        """
        self._refuse_second_caller()
        ids, own = self.encode(prompt), checked(params or self.loaded.defaults)
        request = self._texts.add(GenerationRequest(ids, own, adapter=adapter, images=images))
        try:
            while self.engine.has_work:
                yield from (event for event in self._texts.step() if event.request == request)
        finally:
            self._texts.abort(request)

    @overload
    def chat(
        self, messages: Messages, params: SamplingParams | None = None, *, adapter: str = "", **template: Any
    ) -> Completion: ...

    @overload
    def chat(
        self,
        messages: Sequence[Messages],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        adapter: str | Sequence[str] = "",
        **template: Any,
    ) -> list[Completion]: ...

    def chat(
        self,
        messages: Any,
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        adapter: str | Sequence[str] = "",
        **template: Any,
    ) -> Completion | list[Completion]:
        """Answer a conversation [{"role": ..., "content": ...}], or each of a list of them, in one batch.

        Args:
            messages: The messages of a conversation, or a list of conversations.
            params: As in `generate`.
            adapter: As in `generate`.
            **template: Variables that the chat template reads.

        Raises:
            ValueError: If the model has no chat template, the template refuses the messages, or the messages are
                malformed.
        """
        several = _are_conversations(messages)
        conversations = list(messages) if several else [messages]
        prompts = [self.encode_chat(each, **template) for each in conversations]
        completions = self.generate(prompts, params, adapter=adapter)
        return completions if several else completions[0]

    def encode(self, prompt: Prompt) -> list[int]:
        """Return the token ids of a prompt. Ids pass through; control tokens written in a text count as text.

        Raises:
            ValueError: If the prompt is empty, or its text is far longer than the context.
        """
        return self.loaded.text_processor.encode(prompt, self.engine.traits.context)

    def encode_chat(self, messages: Messages, **template: Any) -> list[int]:
        """Return the token ids of a conversation, ready for the model's response."""
        return self.loaded.text_processor.encode_chat(messages, self.engine.traits.context, **template)

    def _refuse_second_caller(self) -> None:
        """Raise ValueError if another call is in progress, because one caller would take the events of the other."""
        if self.engine.has_work:
            raise ValueError(
                "another stream of this LLM has not ended: end it first, or use AsyncLLM for several streams at once"
            )

    def _params_of(
        self, ids: list[list[int]], params: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[SamplingParams]:
        if not isinstance(params, Sequence):
            return [checked(params or self.loaded.defaults)] * len(ids)
        if len(params) != len(ids):
            raise ValueError(
                f"{len(ids)} prompts have {len(params)} sampling parameters: give one SamplingParams for each "
                "prompt, or one for all"
            )
        return [checked(own) for own in params]

    def _abort(self, requests: Mapping[int, Completion]) -> None:
        """Abort the requests that have not ended when the caller is interrupted."""
        for request, completion in requests.items():
            if not completion.done:
                self._texts.abort(request)


def _each(prompts: Any) -> list[Any]:
    """Return one prompt or several as a list; an array or tensor of ids becomes a list of its rows."""
    if hasattr(prompts, "tolist"):
        prompts = prompts.tolist()
    if not isinstance(prompts, Sequence):
        raise ValueError(f"prompts is a {type(prompts).__name__}: give text, token ids, or a list of either")
    return list(prompts) if not isinstance(prompts, str) and all(map(_is_prompt, prompts[:1])) else [prompts]


def _is_prompt(value: Any) -> bool:
    """Return whether a value is a prompt, not a single token id, which may be an array without dimensions."""
    return isinstance(value, str | Sequence) or getattr(value, "ndim", 0) > 0


def _are_conversations(messages: Any) -> bool:
    """Return whether the messages are a list of conversations, not the messages of a single one."""
    return _is_list(messages) and _is_list(next(iter(messages), None))


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)
