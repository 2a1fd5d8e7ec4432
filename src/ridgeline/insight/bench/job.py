"""The description of a benchmark job as plain data, which can be sent to another process."""

from typing import Literal

import msgspec

Arrivals = Literal["poisson", "gamma", "constant", "trace"]
Endpoint = Literal["chat", "completions"]


class LoadTarget(msgspec.Struct, frozen=True):
    """The server that requests go to, and their common fields."""

    base: str
    """The server's URL, without /v1."""
    model: str
    endpoint: Endpoint = "completions"
    headers: dict[str, str] = {}
    ignore_eos: bool = False
    more: dict[str, object] = {}
    """The additional JSON fields that every benchmark request to the server has."""
    timeout: float = 600.0
    """The seconds after which a request fails."""

    @property
    def url(self) -> str:
        """The URL of the server's chat or completions endpoint."""
        return f"{self.base}/v1/{'chat/completions' if self.endpoint == 'chat' else 'completions'}"


class TokensPerWord(msgspec.Struct, frozen=True):
    """A linear model of a server's tokenizer: tokens = fixed + per_word x words."""

    fixed: float = 0.0
    per_word: float = 1.0
    measured: bool = False
    """Whether the coefficients were measured with the server's token counts; if not, each word counts as a token."""


class PromptDataset(msgspec.Struct, frozen=True):
    """The source of a benchmark's prompts, and the lengths of prompts and responses."""

    kind: Literal["random", "file", "trace"] = "random"
    """The source of prompts: random words, a file of prompts, or the lengths and shared prefixes of a trace."""
    path: str = ""
    input: str = "512"
    """The prompt length in tokens, in the notation of `traffic.lengths`."""
    output: str | None = "128"
    """The response length in tokens; None lets the model end the response."""
    prefix: int = 0
    """The number of tokens at the start of each conversation's first prompt that other conversations share."""
    prefixes: int = 1
    """The number of different shared prefixes."""
    turns: int = 1
    """The number of turns per conversation."""
    think: str | None = None
    """The time between a response and the next turn, in the notation of `traffic.think_time`; None for none."""
    vocabulary: int | None = None
    """The exclusive upper bound of random token ids that replace words; None for words."""
    wording: TokensPerWord = TokensPerWord()
    seed: int = 0


class LoadPattern(msgspec.Struct, frozen=True):
    """The arrival process of requests: an open loop, or a closed loop of users."""

    users: int | None = None
    """The number of users of a closed loop, each sending its next request after a response; None for an open loop."""
    arrivals: Arrivals = "poisson"
    rate: float = 1.0
    """The arrivals per second of an open loop, unless a trace determines them."""
    burstiness: float = 1.0
    speed: float = 1.0
    """The factor by which a trace is replayed faster than recorded."""
    most_under_way: int | None = None
    """The limit of concurrent requests, beyond which arrivals wait at the client; None for no limit."""
    requests: int | None = None
    """The number of conversations (requests, if each has one turn) after which none are started; None for no limit."""
    seconds: float | None = None
    """The seconds after which no conversations are started; None for no limit."""
    most_failed: float = 0.1
    """The share of failed requests above which the run stops."""
    stop_overloaded: bool = False
    """Whether the run stops if the server falls behind."""
    seed: int = 0


class LoadJob(msgspec.Struct, frozen=True, tag=True):
    """The job of one client process in a load test: every `processes`-th session, starting at number `process`."""

    target: LoadTarget
    data: PromptDataset
    load: LoadPattern
    process: int = 0
    processes: int = 1
