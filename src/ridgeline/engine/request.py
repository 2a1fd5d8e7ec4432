"""Request: a prompt, what was sampled after it, and two counters."""

import enum
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from ridgeline.engine.features import PlacedImages
from ridgeline.engine.sampling.row import History, PromptLogprob

if TYPE_CHECKING:
    from ridgeline.engine.generation_request import GenerationRequest
    from ridgeline.engine.guidance import Guide
    from ridgeline.engine.token_rules import RuleGuide

NANOSECONDS = 1e-9


class Finish(enum.StrEnum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Timing:
    """Moments of a request's life, in nanoseconds of the engine's clock; None until they come.

    scheduled: when the first plan that runs it was made. first_token and finished: when those tokens were accepted; of
    a request for no token, when its prompt was computed.
    """

    arrived: int
    scheduled: int | None = None
    first_token: int | None = None
    finished: int | None = None

    @property
    def queued(self) -> float | None:
        """Seconds from its arrival to its first step."""
        return None if self.scheduled is None else (self.scheduled - self.arrived) * NANOSECONDS

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from its arrival to its first token (TTFT)."""
        return None if self.first_token is None else (self.first_token - self.arrived) * NANOSECONDS

    @property
    def seconds(self) -> float | None:
        """Seconds from its arrival to its end."""
        return None if self.finished is None else (self.finished - self.arrived) * NANOSECONDS


@dataclass(frozen=True, slots=True)
class NamedPrompt(Sequence[int]):
    """A prompt of which only the length and the names of its blocks are known: what a recorded trace of traffic says.

    Prompts share a prefix as far as their names are equal. In place of ids it has its names, as numbers below 0: only
    an executor that reads no ids can run it. Where the names of the answer are known too, that executor gives them as
    its tokens: they are then what the prompt has that goes on with it. length: tokens. block: tokens a name stands for.
    start: in a part of another prompt, tokens of its first block that come before it.
    """

    length: int
    names: Sequence[int]
    block: int
    start: int = 0

    def __post_init__(self) -> None:
        if self.block < 1 or len(self.names) != -(-(self.start + self.length) // self.block):
            raise ValueError(
                f"{len(self.names)} names of blocks of {self.block} do not make {self.length} tokens; "
                "give one for each block begun"
            )

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> "NamedPrompt": ...
    def __getitem__(self, index: int | slice) -> "int | NamedPrompt":
        """A name, or a part, which is made in no time however long it is."""
        if not isinstance(index, slice):
            if not 0 <= index < self.length:
                index = range(self.length)[index]
            return -1 - self.names[(self.start + index) // self.block]
        part = range(self.start, self.start + self.length)[index]
        assert part.step == 1
        if not part:
            return NamedPrompt(0, (), self.block)
        first = part.start // self.block
        names = self.names[first : -(-part.stop // self.block)]
        return NamedPrompt(len(part), names, self.block, part.start - first * self.block)

    def __iter__(self) -> Iterator[int]:
        return (-1 - self.names[at // self.block] for at in range(self.start, self.start + self.length))


def token_ids(prompt: Any) -> Sequence[int]:
    """A prompt as ids: a sequence of ints as it is, not copied; numpy's and torch's integers as ints.

    Raises ValueError for what holds no ids.
    """
    if isinstance(prompt, NamedPrompt | range):
        return prompt
    try:
        ids = prompt.tolist() if hasattr(prompt, "tolist") else prompt
        if isinstance(ids, list | tuple) and set(map(type, ids)) <= {int}:
            return ids
        return [operator.index(token) for token in ids]
    except TypeError:
        raise ValueError("the prompt is not a list of token ids; give whole numbers") from None


def unknown_id(ids: Sequence[int], vocabulary: int) -> int | None:
    """One of the ids that a vocabulary of so many does not have, None if it has them all."""
    ends = (min(ids), max(ids)) if ids else ()
    return next((token for token in ends if not 0 <= token < vocabulary), None)


class Tokens(Sequence[int]):
    """What a request knows: its prompt, which is not copied, and then its output. block: that of a NamedPrompt, else
    1."""

    __slots__ = ("block", "output", "prompt")

    def __init__(self, prompt: Sequence[int]) -> None:
        self.prompt = prompt
        self.block = prompt.block if isinstance(prompt, NamedPrompt) else 1
        self.output: list[int] = []

    def __len__(self) -> int:
        return len(self.prompt) + len(self.output)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        """One token, or a slice with step 1, which is not to be changed."""
        size = len(self.prompt)
        if not isinstance(index, slice):
            if not 0 <= index < size:
                index = range(len(self))[index]
            return self.prompt[index] if index < size else self.output[index - size]
        start, stop, step = index.indices(len(self))
        assert step == 1
        if stop <= size:
            part = self.prompt[start:stop]
            return part if isinstance(part, range | NamedPrompt) else tuple(part)
        if start >= size:
            return tuple(self.output[start - size : stop - size])
        return (*self.prompt[start:], *self.output[: stop - size])

    def __iter__(self) -> Iterator[int]:
        yield from self.prompt
        yield from self.output


@dataclass(eq=False, slots=True)
class Request:
    """One sequence under way: one choice of what a user asked for.

    `known` tokens have ids: the prompt, then what was sampled. `computed` of them are in KV memory. The engine's whole
    job is to make `computed` catch up with `known`; a request that was preempted starts again at 0, with all it knows.

    id: also its number of arrival. group: what add() returned, which choices share. spec: the request that add()
    was given, which says all that does not change; no field of it is copied. limit: most tokens to sample; 1 where
    the model has no head. stop_ids: tokens that end it. cache_namespace: what its KV depends on beside its tokens:
    salt, adapter, images and the encoder's input together. running: it holds pages. encoded: a step has been
    planned that puts its encoder's output there. cached: positions it found computed when it began. reached: most
    positions it had computed when it was preempted. scores: log-probabilities of its prompt's tokens so far, from
    the second one on; None if nobody waits for them. told: how many of those events have had. hidden: where the
    model has no head, the hidden states of its prompt so far, step by step; else None. guide: holds its response
    to a form, or to rules. children: further choices of the same prompt, which start from its pages. adapter: the
    number that the adapter has in this engine, counted from 1; 0 for none. placed_images: those of its prompt, with the
    positions at which their rows stand. received: positions whose keys and values another engine computed; 0 once
    it has begun, for a preemption loses them. decode_fast_until: with fewer computed positions it is on the fast path
    of decode, whose state this is (DecodeFastPath).
    """

    id: int
    group: int
    spec: "GenerationRequest"
    tokens: Tokens
    seed: int
    choice: int
    limit: int
    stop_ids: frozenset[int]
    timing: Timing
    adapter: int = 0
    cache_namespace: bytes = b""
    known: int = 0
    computed: int = 0
    running: bool = False
    encoded: bool = False
    cached: int = 0
    preemptions: int = 0
    reached: int = 0
    finish: Finish | None = None
    error: str | None = None
    history: History | None = None
    guide: "Guide | RuleGuide | None" = None
    scores: list[PromptLogprob] | None = None
    told: int = 0
    hidden: list[NDArray[np.float32]] | None = None
    children: list["Request"] = field(default_factory=list)
    placed_images: PlacedImages | None = None
    received: int = 0
    decode_fast_until: int = 0

    def __post_init__(self) -> None:
        self.known = len(self.tokens)

    @property
    def prompt_length(self) -> int:
        """Tokens of its prompt."""
        return len(self.tokens.prompt)

    @property
    def output(self) -> list[int]:
        """The tokens sampled so far."""
        return self.tokens.output

    @property
    def output_length(self) -> int:
        """How many tokens were sampled so far."""
        return len(self.tokens.output)

    @property
    def finds(self) -> bool:
        """Whether what is cached of its prompt need not run: nothing is wanted of each of its positions."""
        return self.scores is None and self.hidden is None

    def told_scores(self, *, last: bool) -> tuple[PromptLogprob | None, ...] | None:
        """Return the scores of its prompt's tokens that no event has had yet; None if the request wants no scores.

        The first token has no score, and None stands for it. last: whether no further tokens will be scored.
        """
        if self.scores is None:
            return None
        first = () if self.told else (None,)
        scores, self.told = self.scores[self.told :], len(self.scores)
        if last:
            self.scores = None
        return (*first, *scores)

    def append(self, token: int) -> Finish | None:
        """Take a sampled token; why the request ends with it, if it does."""
        output = self.tokens.output
        output.append(token)
        self.known += 1
        if self.history is not None:
            self.history.append(token)
        if token in self.stop_ids:
            return Finish.STOP
        if self.guide is not None:
            self.guide.take(token)
            if self.guide.complete:
                return Finish.STOP
        return Finish.LENGTH if len(output) >= self.limit else None
