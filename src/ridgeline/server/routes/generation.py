"""The execution of a generation: it submits all prompts of an HTTP request and collects their events."""

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ridgeline.engine.async_llm import EngineDied, EngineRestarting
from ridgeline.engine.events import Event
from ridgeline.engine.request import FinishReason, Timing
from ridgeline.engine.result import Completion
from ridgeline.server.errors import ApiError, invalid, model_failed
from ridgeline.server.in_flight import Generation, InFlightRequest
from ridgeline.server.routes.logprobs import PromptScores
from ridgeline.server.routes.usage import Usage, timings
from ridgeline.server.service import Service

ENGINE_DIED = "engine_died"
"""The error code for requests that were in progress when the engine's process ended."""
ENGINE_RESTARTING = "engine_restarting"
"""The error code for requests that arrive before the engine's next process is ready."""

Take = Callable[[int, Event], None]
"""A function that takes an event together with the index of its prompt."""
Progress = Callable[[int, int, int], None]
"""A function that takes the index of a prompt, and its positions computed before and after a step."""

_MAX_REASON = 200  # characters

logger = logging.getLogger(__name__)


def new_id(prefix: str) -> str:
    """Return a random id that cannot be guessed, with OpenAI's prefix for its kind, which some clients check."""
    return f"{prefix}{secrets.token_hex(16)}"


async def run(service: Service, generation: Generation, take: Take, progress: Progress | None = None) -> None:
    """Run all prompts of a generation and pass each event to `take`; if one fails, end the others.

    Args:
        service: The service of the model.
        generation: The prompts.
        take: Called with each event and the index of its prompt.
        progress: Called with the prefill progress of each prompt.

    Raises:
        ApiError: If a prompt is rejected or fails.
    """
    if len(generation.requests) == 1:
        await _run_one(service, generation, 0, take, progress)
        return
    try:
        async with asyncio.TaskGroup() as group:
            for prompt in range(len(generation.requests)):
                group.create_task(_run_one(service, generation, prompt, take, progress))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _run_one(
    service: Service, generation: Generation, prompt: int, take: Take, progress: Progress | None
) -> None:
    live = InFlightRequest(generation, prompt, progress=partial(progress, prompt) if progress is not None else None)
    begun = False

    def on_event(event: Event) -> None:
        nonlocal begun
        begun = True
        if event.finish is FinishReason.ERROR or event.finish is FinishReason.ABORT:
            raise _failed(generation.id, event)
        take(prompt, event)

    try:
        await service.run(live, on_event)
    except EngineRestarting:
        raise engine_restarting() from None
    except EngineDied:
        raise engine_died() from None
    except ValueError as error:
        if begun:
            raise
        raise invalid(str(error)) from None  # the engine's own one-line message


def _failed(id: str, event: Event) -> ApiError:
    """Return the error for a request that failed in the engine, and log its reason.

    The reason may contain an exception's message, which the client does not get; the log gets only the engine's own
    words.
    """
    if event.finish is FinishReason.ABORT:
        return ApiError(503, "the server aborted the request", code="aborted")
    logger.error("request %s failed in the engine: %s", id, _without_quotes(event.error or ""))
    return model_failed(out_of_memory=event.out_of_memory)


def _without_quotes(reason: str) -> str:
    """Return the part of a reason before its colon: the engine's own words, or the class of an exception.

    An exception's or a grammar's message after the colon may quote a user.
    """
    return "".join(c for c in reason.partition(":")[0] if c.isprintable())[:_MAX_REASON]


def engine_died() -> ApiError:
    """Return the 503 error for requests that were in progress when the engine's process ended."""
    return ApiError(503, "the engine stopped and the request is lost: send it again", code=ENGINE_DIED)


def engine_restarting() -> ApiError:
    """Return the 503 error for requests that arrive while the engine restarts and loads the model again."""
    return ApiError(503, "the engine is restarting", code=ENGINE_RESTARTING, headers={"Retry-After": "5"})


@dataclass(slots=True)
class GenerationResult:
    """The complete result of all prompts of an HTTP request."""

    completions: list[Completion]
    """The completion of each prompt."""
    usage: Usage
    """The token counts of all prompts and choices."""
    arrived: int
    """The time at which the server received the request, in nanoseconds as in `GenerationRequest`."""
    scores: Sequence[PromptScores] = ()
    """The log-probabilities of each prompt's tokens, if the request asked for them."""

    @property
    def times(self) -> list[Timing]:
        """The times of arrival, first step, first token and end of each completion of the request that has them."""
        return [choice.timing for each in self.completions for choice in each.choices if choice.timing is not None]

    def timings(self) -> dict[str, float | int]:
        """Return the `timings` object of the response, with llama.cpp's names."""
        return timings(self.arrived, self.times, self.usage)


async def gather(service: Service, generation: Generation, scores: Sequence[PromptScores] = ()) -> GenerationResult:
    """Run all prompts of a generation and return the complete result.

    Args:
        service: The service of the model.
        generation: The prompts.
        scores: Collect the log-probabilities of each prompt's tokens, if the request asks for them.

    Raises:
        ApiError: If a prompt is rejected or fails.
    """
    completions = [Completion.empty(spec.prompt, spec.params.n) for spec in generation.requests]
    usage = Usage(generation.prompt_tokens)

    def take(prompt: int, event: Event) -> None:
        if event.prompt_logprobs is not None:
            scores[prompt].take(event.prompt_logprobs)
            event = event._replace(prompt_logprobs=None)
        completions[prompt].take([event])
        usage.take(prompt, generation.index(prompt, event.choice), event)

    await run(service, generation, take)
    return GenerationResult(completions, usage, generation.arrived, scores)
