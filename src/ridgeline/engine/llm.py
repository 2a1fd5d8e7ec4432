"""LLM: the engine for a script. `LLM("folder").generate(["Once upon a time"])`."""

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
    """A loaded engine and a transcript beside it, in one process: prompts of ids in, events with text out."""

    def __init__(self, loaded: LoadedEngine) -> None:
        self.engine, self.texts, self.output_processor = (
            loaded.engine,
            loaded.texts,
            loaded.texts.new_output_processor(),
        )

    def add(self, spec: GenerationRequest) -> int:
        """Queue a request, as Engine.add. Its stop strings are the transcript's; its prompt is what an encoder reads,
        where there is one.
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
        """One step of the engine, with the text of its tokens; a choice whose text has ended is stopped."""
        events, stops = self.output_processor.take(self.engine.step())
        for stop in stops:
            self.engine.stop(*stop)
        return events

    def abort(self, request: int) -> list[Event]:
        """End a request; the last of its text comes with the events."""
        return self.output_processor.take(self.engine.abort(request))[0]


class LLM:
    """A model that generates, in the caller's thread. One caller at a time; `AsyncLLM` serves many."""

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
        """`model`: a checkpoint folder, a GGUF file, a built-in name, or the source of one. weights, kv, device: as of
        EngineSettings, `LLM("tales", weights="int8", device="cuda")`. threads: that torch computes with, in all of the
        process; by default all cores, and one for a small model. The rest as `load_engine`, errors too. Raises
        ValueError for more threads than cores.
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
        """The same around what is loaded already, on the threads that torch has. Raises ModelRefused."""
        llm = cls.__new__(cls)
        llm.name = name
        llm._take(loaded, torch.get_num_threads())
        return llm

    def _take(self, loaded: LoadedEngine, threads: int) -> None:
        if loaded.vectors is not None:
            raise ModelRefused(f"{self.name} turns texts into vectors or scores and writes none; use ridgeline embed")
        self.loaded, self.threads = loaded, threads
        self.engine, self.tokenizer = loaded.engine, loaded.tokenizer
        self._texts = TextEngine(loaded)

    @override
    def __repr__(self) -> str:
        context, held = self.engine.context, self.loaded.layout.holds()
        return f"LLM({self.name!r}, context {context:,}, KV cache: {held}, threads {self.threads})"

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        adapter: str | Sequence[str] = "",
    ) -> list[Completion]:
        """Complete prompts (text or token ids) together, in one continuous batch.

        params: for all prompts, or one each; by default what the model's generation_config.json says. adapter: the name
        of the one that is asked (EngineSettings.adapters), "" for none; for all prompts, or one each. Raises ValueError
        for a prompt or a parameter that cannot run, before anything does. A request that fails later has an `error`.
        """
        self._refuse_second_caller()
        given, ids = _each(prompts), list[list[int]]()
        for place, prompt in enumerate(given):
            with numbered("prompt", place, len(given)):
                ids.append(self.encode(prompt))
        each = self._params_of(ids, params)
        adapters = [adapter] * len(ids) if isinstance(adapter, str) else adapter
        if len(adapters) != len(ids):
            raise ValueError(f"{len(ids)} prompts but {len(adapters)} adapters; give one each, or one for all")
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
        """Complete one prompt, event by event. adapter: as `generate`. images: the patches of those that stand in it,
        whose places are in its ids. Leaving the loop early aborts the request.
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

        params, adapter: as `generate`. template: variables that the chat template reads. Raises ValueError if the model
        has no chat template, it refuses the messages, or they are none.
        """
        several = _are_conversations(messages)
        conversations = list(messages) if several else [messages]
        prompts = [self.encode_chat(each, **template) for each in conversations]
        completions = self.generate(prompts, params, adapter=adapter)
        return completions if several else completions[0]

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt; ids stay as they are. Control tokens written in the text are text.

        Raises ValueError for an empty prompt, and for a text far longer than the context.
        """
        return self.loaded.texts.encode(prompt, self.engine.context)

    def encode_chat(self, messages: Messages, **template: Any) -> list[int]:
        """Token ids of a conversation, ready to be answered."""
        return self.loaded.texts.encode_chat(messages, self.engine.context, **template)

    def _refuse_second_caller(self) -> None:
        """One caller's loop would take the other's events."""
        if self.engine.has_work:
            raise ValueError("this LLM is in the middle of another stream; end that first, or use AsyncLLM for several")

    def _params_of(
        self, ids: list[list[int]], params: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[SamplingParams]:
        if not isinstance(params, Sequence):
            return [checked(params or self.loaded.defaults)] * len(ids)
        if len(params) != len(ids):
            raise ValueError(f"{len(ids)} prompts but {len(params)} sampling parameters; give one each, or one for all")
        return [checked(own) for own in params]

    def _abort(self, requests: Mapping[int, Completion]) -> None:
        """What is still under way when the caller is interrupted."""
        for request, completion in requests.items():
            if not completion.done:
                self._texts.abort(request)


def _each(prompts: Any) -> list[Any]:
    """One prompt or several as a list; an array or a tensor of ids as its rows."""
    if hasattr(prompts, "tolist"):
        prompts = prompts.tolist()
    if not isinstance(prompts, Sequence):
        raise ValueError(f"prompts is a {type(prompts).__name__}; give text, token ids, or a list of either")
    return list(prompts) if not isinstance(prompts, str) and all(map(_is_prompt, prompts[:1])) else [prompts]


def _is_prompt(value: Any) -> bool:
    """Whether it is a prompt rather than one of its ids, which may be an array of no dimension."""
    return isinstance(value, str | Sequence) or getattr(value, "ndim", 0) > 0


def _are_conversations(messages: Any) -> bool:
    """Whether they are conversations rather than the messages of one."""
    return _is_list(messages) and _is_list(next(iter(messages), None))


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)
