"""InFlightRequest: a prompt while it is in the server, and the HTTP request that it came with."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.request import FinishReason


@dataclass(frozen=True, slots=True)
class Generation:
    """Prompts of one HTTP request, to be completed for one response.

    id: of the response. model: the name that the response says. route: the path that the request came by. specs: a
    request for each prompt, all with the same sampling parameters and the same time of arrival. stream: whether the
    response is sent piece by piece. created: Unix seconds.
    """

    id: str
    model: str
    route: str
    specs: Sequence[GenerationRequest]
    stream: bool = False
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def params(self) -> SamplingParams:
        """The sampling parameters of every prompt."""
        return self.specs[0].params

    @property
    def arrived(self) -> int:
        """The time at which the HTTP request was taken up."""
        return self.specs[0].arrived

    @property
    def choices(self) -> int:
        """The number of choices of all prompts, which all have to be in the server at once."""
        return len(self.specs) * self.params.n

    @property
    def prompt_tokens(self) -> int:
        """The tokens of all prompts."""
        return sum(len(spec.prompt) for spec in self.specs)

    def index(self, prompt: int, choice: int) -> int:
        """Return the place of a prompt's choice in the response."""
        return prompt * self.params.n + choice


@dataclass(eq=False, slots=True)
class InFlightRequest:
    """A prompt of a Generation while it is in the server. Nobody keeps it once its request has ended, because what a
    client asks may be as long as the body of an HTTP request.

    place: the prompt's in the generation. id: what the client sees (`chatcmpl-...`). spec: the request for the prompt.
    request: the engine's number, once it has one. begun: whether its first step runs or has run. cached: positions of
    its prompt that were found in KV memory. tokens: output tokens told so far, of all choices. finishes: why each
    choice ended. progress: hears how many of its prompt's positions were computed before a step, and how many are after
    it. fail: ends it with an error.
    """

    generation: Generation
    place: int = 0
    id: str = field(init=False)
    spec: GenerationRequest = field(init=False)
    request: int | None = None
    begun: bool = False
    cached: int = 0
    tokens: int = 0
    finishes: list[FinishReason] = field(default_factory=list)
    progress: Callable[[int, int], None] | None = None
    fail: Callable[[Exception], None] | None = None

    def __post_init__(self) -> None:
        self.spec = self.generation.specs[self.place]
        self.id = f"{self.generation.id}-{self.place}" if self.place else self.generation.id

    @property
    def prompt_tokens(self) -> int:
        """The tokens of its prompt."""
        return len(self.spec.prompt)
