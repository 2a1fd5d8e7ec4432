"""Job: what a load generator is to do, as plain data that another process can be given."""

from typing import Literal

import msgspec

Arrivals = Literal["poisson", "gamma", "constant", "trace"]
Endpoint = Literal["chat", "completions"]


class LoadTarget(msgspec.Struct, frozen=True):
    """Where requests go, and what each says besides its prompt. base: the server's URL, without /v1. more: further
    fields of every request. timeout: seconds after which a request is given up.
    """

    base: str
    model: str
    endpoint: Endpoint = "completions"
    headers: dict[str, str] = {}
    ignore_eos: bool = False
    more: dict[str, object] = {}
    timeout: float = 600.0

    @property
    def url(self) -> str:
        """Of the route."""
        return f"{self.base}/v1/{'chat/completions' if self.endpoint == 'chat' else 'completions'}"


class TokensPerWord(msgspec.Struct, frozen=True):
    """How many words make how many tokens with this server's tokenizer: tokens = fixed + per_word x words. measured:
    whether its own counts said so, else a word is taken for a token.
    """

    fixed: float = 0.0
    per_word: float = 1.0
    measured: bool = False


class PromptDataset(msgspec.Struct, frozen=True):
    """What is asked. kind: random words; the prompts of a file; the lengths and shared prefixes of a trace.

    input, output: lengths in tokens as `traffic.lengths` writes them; output of None leaves the end to the model.
    prefix: tokens at the start of every prompt that it shares with others, one of `prefixes` such starts. turns: of a
    conversation; think: seconds between an answer and the next question. vocabulary: prompts of token ids below it
    instead of words.
    """

    kind: Literal["random", "file", "trace"] = "random"
    path: str = ""
    input: str = "512"
    output: str | None = "128"
    prefix: int = 0
    prefixes: int = 1
    turns: int = 1
    think: float = 0.0
    vocabulary: int | None = None
    wording: TokensPerWord = TokensPerWord()
    seed: int = 0


class LoadPattern(msgspec.Struct, frozen=True):
    """When it is asked. users: a closed loop of so many, each asking again when it has its answer; else arrivals come
    by themselves, `rate` a second (of a trace: as recorded, `speed` times as fast).

    most_under_way: arrivals beyond it wait at the client; None for no limit. requests, seconds: after which no more are
    sent, whichever is first. most_failed: share of failed requests from which the run is given up. stop_overloaded:
    give it up too when the server falls behind.
    """

    users: int | None = None
    arrivals: Arrivals = "poisson"
    rate: float = 1.0
    burstiness: float = 1.0
    speed: float = 1.0
    most_under_way: int | None = None
    requests: int | None = None
    seconds: float | None = None
    most_failed: float = 0.1
    stop_overloaded: bool = False
    seed: int = 0


class LoadJob(msgspec.Struct, frozen=True, tag=True):
    """All of it, and which part of it is for this process: every `processes`-th session from `process` on."""

    target: LoadTarget
    data: PromptDataset
    load: LoadPattern
    process: int = 0
    processes: int = 1
