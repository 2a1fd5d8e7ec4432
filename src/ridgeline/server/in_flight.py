"""A prompt while the server processes it, and the HTTP request that it belongs to."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.request import FinishReason


@dataclass(frozen=True, slots=True)
class Generation:
    """The prompts of one HTTP request, which are completed for one response."""

    id: str
    """The id of the response, which the client sees."""
    model: str
    """The model name in the response."""
    route: str
    """The path of the HTTP request."""
    requests: Sequence[GenerationRequest]
    """One engine request per prompt, all with the same sampling parameters and arrival time."""
    stream: bool = False
    """Whether the response is streamed."""
    created: int = field(default_factory=lambda: int(time.time()))
    """The creation time of the response, in Unix seconds."""

    @property
    def params(self) -> SamplingParams:
        """The sampling parameters, which are the same for every prompt."""
        return self.requests[0].params

    @property
    def arrived(self) -> int:
        """The time at which the server received the HTTP request, in nanoseconds of `time.perf_counter_ns`."""
        return self.requests[0].arrived

    @property
    def choices(self) -> int:
        """The number of choices over all prompts; all of them are in the server at the same time."""
        return len(self.requests) * self.params.n

    @property
    def prompt_tokens(self) -> int:
        """The total number of tokens of all prompts."""
        return sum(len(spec.prompt) for spec in self.requests)

    def index(self, prompt: int, choice: int) -> int:
        """Return the index in the response of one choice of one prompt."""
        return prompt * self.params.n + choice


@dataclass(eq=False, slots=True)
class InFlightRequest:
    """One prompt of a `Generation` while the server processes it.

    Nothing may keep a reference to it after the request has ended, because its prompt may be as long as an HTTP body.
    """

    generation: Generation
    prompt_index: int = 0
    """The index of the prompt within its HTTP request."""
    id: str = field(init=False)
    """The id of the response (`chatcmpl-...`), followed by the index of the prompt for all prompts but the first."""
    spec: GenerationRequest = field(init=False)
    """The request, in the engine's format, that completes this prompt."""
    request: int | None = None
    """The engine's number for the request, or None before the engine has accepted it."""
    begun: bool = False
    """Whether the first step of the request has begun."""
    cached: int = 0
    """The number of prompt positions found in the KV cache."""
    tokens: int = 0
    """The number of output tokens received so far, over all choices."""
    finishes: list[FinishReason] = field(default_factory=list)
    """The finish reasons of the choices that have ended."""
    progress: Callable[[int, int], None] | None = None
    """The callback for prefill progress: prompt positions computed before a step, and after it."""
    fail: Callable[[Exception], None] | None = None
    """The callback that ends the request with an error."""

    def __post_init__(self) -> None:
        self.spec = self.generation.requests[self.prompt_index]
        self.id = f"{self.generation.id}-{self.prompt_index}" if self.prompt_index else self.generation.id

    @property
    def prompt_tokens(self) -> int:
        """The number of tokens of the prompt."""
        return len(self.spec.prompt)
