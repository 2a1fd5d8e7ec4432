"""Generation: what one HTTP request has the engine do, and how its events are gathered."""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from ridgeline.engine.async_llm import EngineDied, EngineRestarting
from ridgeline.engine.events import Event
from ridgeline.engine.features import EncoderInput
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.request import Finish, Timing
from ridgeline.engine.result import Completion
from ridgeline.server.api.logprobs import PromptScores
from ridgeline.server.api.usage import Usage, timings
from ridgeline.server.errors import ApiError, invalid
from ridgeline.server.service import Live, Service

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


@dataclass(frozen=True, slots=True)
class Generation:
    """Prompts to be completed, each `params.n` times, for one answer.

    id: of the answer. model: the name that it says. route: the path that it came by. created: Unix seconds. root: what
    separates its prefix cache from others'. encoder: what an encoder reads beside each prompt. sections: whether
    reasoning is told apart from the answer. arrived, adapter, tier: as Live.
    """

    id: str
    model: str
    route: str
    prompts: Sequence[Sequence[int]]
    params: SamplingParams
    root: bytes = b""
    stream: bool = False
    sections: bool = True
    created: int = field(default_factory=lambda: int(time.time()))
    arrived: int = field(default_factory=time.perf_counter_ns)
    encoder: EncoderInput = ()
    adapter: str = ""
    tier: str = ""

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))

    def usage(self) -> Usage:
        """Counts of its tokens, none of them run so far."""
        return Usage(self.prompt_tokens)

    def index(self, prompt: int, choice: int) -> int:
        """The place in the answer of a choice of a prompt."""
        return prompt * self.params.n + choice


def new_id(prefix: str) -> str:
    """An id that nobody can guess. prefix: OpenAI's of this kind; some clients look at it."""
    return f"{prefix}{secrets.token_hex(16)}"


async def run(service: Service, generation: Generation, take: Take, progress: Progress | None = None) -> None:
    """Have all prompts completed, telling `take` of every event. Raises ApiError; then all of them are ended."""
    if len(generation.prompts) == 1:
        await _run_one(service, generation, 0, take, progress)
        return
    try:
        async with asyncio.TaskGroup() as group:
            for prompt in range(len(generation.prompts)):
                group.create_task(_run_one(service, generation, prompt, take, progress))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _run_one(
    service: Service, generation: Generation, prompt: int, take: Take, progress: Progress | None
) -> None:
    ids = generation.prompts[prompt]
    name = f"{generation.id}-{prompt}" if prompt else generation.id
    live = Live(name, generation.route, len(ids), generation.params, generation.stream, generation.arrived)
    live.adapter, live.tier = generation.adapter, generation.tier
    live.together = len(generation.prompts) * generation.params.n
    live.sections, live.progress = generation.sections, partial(progress, prompt) if progress is not None else None
    begun = False

    def told(event: Event) -> None:
        nonlocal begun
        begun = True
        if event.finish is Finish.ERROR or event.finish is Finish.ABORT:
            raise _failed(generation.id, event)
        take(prompt, event)

    try:
        await service.run(live, ids, told, generation.root, generation.encoder)
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
    if event.finish is Finish.ABORT:
        return ApiError(503, "the request was ended by the server", kind="server_error", code="aborted")
    logger.error("request %s failed in the engine: %s", id, _without_quotes(event.error or ""))
    if event.out_of_memory:
        return ApiError(503, "there was no memory for this request", kind="server_error", code="out_of_memory")
    return ApiError(500, "the model failed on this request", kind="server_error", code="failed", retry=False)


def _without_quotes(reason: str) -> str:
    """The engine's own words, or the class of an exception. After a colon come the exception's, or a grammar's, which
    may quote a user."""
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
class Gathered:
    """The whole response: a Completion for each prompt, its token usage, and when it was asked for (as Live). scores:
    the token scores of each prompt."""

    completions: list[Completion]
    usage: Usage
    arrived: int
    scores: Sequence[PromptScores] = ()

    @property
    def times(self) -> list[Timing]:
        return [choice.timing for each in self.completions for choice in each.choices if choice.timing is not None]

    def timings(self) -> dict[str, float | int]:
        return timings(self.arrived, self.times, self.usage)


async def gather(service: Service, generation: Generation, scores: Sequence[PromptScores] = ()) -> Gathered:
    """Complete all prompts and return everything at once. scores: they take the scores of each prompt's tokens, if the
    request asks for them. Raises ApiError."""
    completions = [Completion.empty(ids, generation.params.n) for ids in generation.prompts]
    usage = generation.usage()

    def take(prompt: int, event: Event) -> None:
        if event.prompt_logprobs is not None:
            scores[prompt].take(event.prompt_logprobs)
            event = event._replace(prompt_logprobs=None)
        completions[prompt].take([event])
        usage.take(prompt, generation.index(prompt, event.choice), event)

    await run(service, generation, take)
    return Gathered(completions, usage, generation.arrived, scores)
