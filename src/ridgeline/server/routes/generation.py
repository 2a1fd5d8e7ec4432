"""The completion of all prompts of an HTTP request, and how their events are gathered."""

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
from ridgeline.server.errors import ApiError, invalid
from ridgeline.server.in_flight import Generation, InFlightRequest
from ridgeline.server.routes.logprobs import PromptScores
from ridgeline.server.routes.usage import Usage, timings
from ridgeline.server.service import Service

ENGINE_DIED = "engine_died"
"""The code of the error of all who were waiting when the engine's process ended."""
ENGINE_RESTARTING = "engine_restarting"
"""The code of the error of all who come before the next process is there."""

Take = Callable[[int, Event], None]
"""Who is told of an event, and of which prompt it is."""
Progress = Callable[[int, int, int], None]
"""Who is told, of which prompt, how many of its positions were computed before a step, and are after it."""

_MAX_REASON = 200  # characters

logger = logging.getLogger(__name__)


def new_id(prefix: str) -> str:
    """An id that nobody can guess. prefix: OpenAI's of this kind; some clients look at it."""
    return f"{prefix}{secrets.token_hex(16)}"


async def run(service: Service, generation: Generation, take: Take, progress: Progress | None = None) -> None:
    """Have all prompts completed, telling `take` of every event. Raises ApiError; then all of them are ended."""
    if len(generation.specs) == 1:
        await _run_one(service, generation, 0, take, progress)
        return
    try:
        async with asyncio.TaskGroup() as group:
            for prompt in range(len(generation.specs)):
                group.create_task(_run_one(service, generation, prompt, take, progress))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _run_one(
    service: Service, generation: Generation, prompt: int, take: Take, progress: Progress | None
) -> None:
    live = InFlightRequest(generation, prompt, progress=partial(progress, prompt) if progress is not None else None)
    begun = False

    def told(event: Event) -> None:
        nonlocal begun
        begun = True
        if event.finish is FinishReason.ERROR or event.finish is FinishReason.ABORT:
            raise _failed(generation.id, event)
        take(prompt, event)

    try:
        await service.run(live, told)
    except EngineRestarting:
        raise engine_restarting() from None
    except EngineDied:
        raise engine_died() from None
    except ValueError as error:
        if begun:
            raise
        raise invalid(str(error)) from None  # the engine's refusal: one line of its own


def _failed(id: str, event: Event) -> ApiError:
    """The engine's reason may be an exception's words: the client is not told, the log only what is the engine's."""
    if event.finish is FinishReason.ABORT:
        return ApiError(503, "the request was ended by the server", kind="server_error", code="aborted")
    logger.error("request %s failed in the engine: %s", id, _without_quotes(event.error or ""))
    if event.out_of_memory:
        return ApiError(503, "there was no memory for this request", kind="server_error", code="out_of_memory")
    return ApiError(500, "the model failed on this request", kind="server_error", code="failed", retry=False)


def _without_quotes(reason: str) -> str:
    """The engine's own words, or the class of an exception. After a colon come the exception's, or a grammar's, which
    may quote a user.
    """
    return "".join(c for c in reason.partition(":")[0] if c.isprintable())[:_MAX_REASON]


def engine_died() -> ApiError:
    """The answer to all who were waiting when the engine's process ended."""
    return ApiError(503, "the engine stopped; the request is lost", kind="server_error", code=ENGINE_DIED)


def engine_restarting() -> ApiError:
    """The answer to who comes while the engine is being started again. The model has to be loaded, as at first."""
    retry = {"Retry-After": "5"}
    message = "the engine is being started again"
    return ApiError(503, message, kind="server_error", code=ENGINE_RESTARTING, headers=retry)


@dataclass(slots=True)
class GenerationResult:
    """The whole response: a Completion for each prompt, its token usage, and the time at which it was asked for
    (as GenerationRequest). scores: the token scores of each prompt.
    """

    completions: list[Completion]
    usage: Usage
    arrived: int
    scores: Sequence[PromptScores] = ()

    @property
    def times(self) -> list[Timing]:
        return [choice.timing for each in self.completions for choice in each.choices if choice.timing is not None]

    def timings(self) -> dict[str, float | int]:
        return timings(self.arrived, self.times, self.usage)


async def gather(service: Service, generation: Generation, scores: Sequence[PromptScores] = ()) -> GenerationResult:
    """Complete all prompts and return everything at once. scores: they take the scores of each prompt's tokens, if the
    request asks for them. Raises ApiError.
    """
    completions = [Completion.empty(spec.prompt, spec.params.n) for spec in generation.specs]
    usage = Usage(generation.prompt_tokens)

    def take(prompt: int, event: Event) -> None:
        if event.prompt_logprobs is not None:
            scores[prompt].take(event.prompt_logprobs)
            event = event._replace(prompt_logprobs=None)
        completions[prompt].take([event])
        usage.take(prompt, generation.index(prompt, event.choice), event)

    await run(service, generation, take)
    return GenerationResult(completions, usage, generation.arrived, scores)
