"""Log-probabilities in responses: OpenAI's two formats, and vLLM's format for the tokens of the prompt."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import msgspec

from ridgeline.core.text import Tokenizer, TokenOffsets
from ridgeline.engine.sampling.sample_row import PromptLogprob, Sampled
from ridgeline.server.event_loop import slices
from ridgeline.server.routes.long_response import EncodedList

Scores = Sequence[PromptLogprob | None]
"""The log-probabilities of consecutive prompt tokens; None for the first token, which nothing precedes."""

MIN_LOGPROB = -9999.0
"""The substitute for minus infinity, which JSON cannot represent; the same number as in vLLM."""


class TokenNames:
    """The naming of tokens in a response: by text, or as `token_id:7` if the request wants ids."""

    def __init__(self, tokenizer: Tokenizer, *, as_ids: bool = False) -> None:
        self.tokenizer, self._as_ids = tokenizer, as_ids

    def text(self, token: int) -> str:
        """Return a token as text, with incomplete characters as U+FFFD, or as `token_id:7` if the request wants ids."""
        return f"token_id:{token}" if self._as_ids else self.data(token).decode("utf-8", "replace")

    def distinct(self, tokens: Iterable[int]) -> dict[int, str]:
        """Return a name for each token, such that no two tokens have the same name.

        Of several tokens with the same text, the first gets the text as its name. The others are named by their bytes,
        as OpenAI names incomplete characters, or by their ids if those names are taken too.
        """
        names: dict[str, int] = {}
        for token in dict.fromkeys(tokens):
            spelled = "bytes:" + "".join(f"\\x{byte:02x}" for byte in self.data(token))
            name = next((name for name in (self.text(token), spelled) if name not in names), f"token_id:{token}")
            names[name] = token
        return {token: name for name, token in names.items()}

    def data(self, token: int) -> bytes:
        """Return the exact bytes of a token; for a control token, those of its spelling."""
        return self.tokenizer.token_bytes(token, skip_special=False)


def chat_logprobs(tokens: Iterable[Sampled], names: TokenNames) -> dict[str, object]:
    """Return the `logprobs` of a chat choice: its tokens, each with the most likely alternatives."""
    return {"content": _chat_entries(tokens, names), "refusal": None}


async def long_chat_logprobs(tokens: Sequence[Sampled], names: TokenNames) -> dict[str, object]:
    """Return the `logprobs` of a chat choice like `chat_logprobs`, in slices so as not to block the event loop."""
    content = EncodedList()
    async for part in slices(tokens):
        content.add(_chat_entries(part, names))
    return {"content": content.json(), "refusal": None}


def _chat_entries(tokens: Iterable[Sampled], names: TokenNames) -> list[dict[str, object]]:
    return [
        {**_entry(one.token, one.logprob_raw, names), "top_logprobs": [_entry(*pair, names) for pair in one.top_raw]}
        for one in tokens
    ]


def _entry(token: int, logprob: float | None, names: TokenNames) -> dict[str, object]:
    return {"token": names.text(token), "logprob": _finite(logprob), "bytes": list(names.data(token))}


class CompletionLogprobs:
    """The log-probabilities of one completion choice, as parallel lists with the text offset of each token."""

    def __init__(self, names: TokenNames) -> None:
        self._names = names
        self._columns = {name: EncodedList() for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}

    def copy(self) -> "CompletionLogprobs":
        """Return an independent copy of the log-probability lists."""
        other = CompletionLogprobs(self._names)
        for name, column in self._columns.items():
            other._columns[name].extend(column)
        return other

    def add_prompt(self, prompt: Sequence[int], scores: Scores, offsets: Sequence[int]) -> None:
        """Append the next tokens of an echoed prompt with their log-probabilities.

        Args:
            prompt: The ids of the tokens.
            scores: One for each token; None for the first token of the prompt.
            offsets: The offsets of the tokens in the response text, in characters.
        """
        rows = [(s.token, s.logprob, s.top) if s is not None else None for s in scores]
        self._add([row or (token, None, None) for token, row in zip(prompt, rows, strict=True)], offsets)

    def add_output(self, tokens: Iterable[Sampled], offsets: Sequence[int]) -> None:
        """Append the next output tokens, whose offsets in the text are `offsets`."""
        self._add([(one.token, one.logprob_raw, one.top_raw) for one in tokens], offsets)

    def json(self) -> dict[str, msgspec.Raw]:
        """Return the log-probabilities added since the last call, as encoded JSON lists, and start empty lists."""
        written = {name: column.json() for name, column in self._columns.items()}
        self._columns = {name: EncodedList() for name in self._columns}
        return written

    def _add(
        self, rows: Sequence[tuple[int, float | None, tuple[tuple[int, float], ...] | None]], offsets: Sequence[int]
    ) -> None:
        columns: dict[str, list[object]] = {name: [] for name in self._columns}
        columns["text_offset"] += offsets
        for token, logprob, top in rows:
            columns["tokens"].append(self._names.text(token))
            columns["token_logprobs"].append(None if logprob is None else _finite(logprob))
            columns["top_logprobs"].append(None if top is None else self._top(token, logprob, top))
        for name, column in columns.items():
            self._columns[name].add(column)

    def _top(self, token: int, logprob: float | None, top: tuple[tuple[int, float], ...]) -> dict[str, float]:
        """Return the log-probabilities of a token and of the most likely ones, by names that match `tokens`."""
        names = self._names.distinct((token, *(other for other, _ in top)))
        return {names[other]: _finite(own) for other, own in (*top, (token, logprob))}


class PromptScores:
    """A collector of the log-probabilities of one prompt's tokens, encoded step by step as the engine computes them.

    They become vLLM's `prompt_logprobs` (a list), or the beginning of a completion that echoes its prompt. Encoding
    those of a whole prompt at once would block the event loop for seconds.
    """

    def __init__(self, prompt: Sequence[int], names: TokenNames, *, listed: bool, echoed: bool) -> None:
        """Prepare a collector for the log-probabilities of a prompt.

        Args:
            prompt: The token ids of the prompt.
            names: The naming of tokens.
            listed: Whether the response has `prompt_logprobs`.
            echoed: Whether a completion echoes the prompt with its log-probabilities.
        """
        self._prompt, self._names, self._taken = prompt, names, 0
        self._offsets = TokenOffsets(names.tokenizer)
        self._list = EncodedList() if listed else None
        self._echo = CompletionLogprobs(names) if echoed else None

    def take(self, scores: Scores) -> None:
        """Encode the log-probabilities of the next prompt tokens."""
        if self._list is not None:
            self._list.add(prompt_logprobs(scores, self._names))
        if self._echo is not None:
            tokens = self._prompt[self._taken : self._taken + len(scores)]
            self._echo.add_prompt(tokens, scores, [self._offsets.push(token) for token in tokens])
        self._taken += len(scores)

    @cached_property
    def response_fields(self) -> Mapping[str, object]:
        """The response fields with the collected data: `prompt_logprobs`, if the request wants it."""
        return {} if self._list is None else {"prompt_logprobs": self._list.json()}

    def continued(self) -> CompletionLogprobs:
        """Return the log-probabilities of a completion, starting with those of the echoed prompt if there is one."""
        return CompletionLogprobs(self._names) if self._echo is None else self._echo.copy()


def prompt_logprobs(scores: Scores, names: TokenNames) -> list[dict[str, object] | None]:
    """Return vLLM's `prompt_logprobs`: per prompt token, an object of that token and the most likely ones, by id.

    `rank` is 1 for the most likely token, and null if the prompt's token is not among them.
    """
    return [None if score is None else _by_id(score.token, score.logprob, score.top, names) for score in scores]


def _by_id(token: int, logprob: float, top: tuple[tuple[int, float], ...], names: TokenNames) -> dict[str, object]:
    ranked = {other: (own, rank) for rank, (other, own) in enumerate(top, 1)}
    return {
        str(i): {"logprob": _finite(own), "rank": rank, "decoded_token": names.text(i)}
        for i, (own, rank) in ({token: (logprob, None)} | ranked).items()
    }


def _finite(logprob: float | None) -> float:
    return MIN_LOGPROB if logprob is None else max(logprob, MIN_LOGPROB)
