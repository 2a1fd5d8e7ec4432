"""One choice's way out: token ids to the text a client may see."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from ridgeline.core.text.detokenizer import Detokenizer
from ridgeline.core.text.reasoning import Reasoning
from ridgeline.core.text.stop_strings import StopMatcher
from ridgeline.core.text.tokenizer import Tokenizer


class Delta(NamedTuple):
    """What one token released; `stop` is the stop string that ended the answer."""

    text: str = ""
    reasoning: str = ""
    stop: str | None = None


class OutputStream:
    """Detokenizer, then reasoning sections, then stop strings.

    Stop strings apply to the answer only: a model's thoughts are not the text that a caller's `"\\n\\n"` is about.
    With no `reasoning` all text is answer. Call push once a token and finish at the end; a match ends the stream, and
    finish may then be left out. An end-of-sequence token may be pushed: being special it has no text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stops: Sequence[str] = (),
        include_stop: bool = False,
        skip_special: bool = True,
        reasoning: Reasoning | None = None,
        continues: bool = False,
        min_tokens: int = 0,
    ) -> None:
        """`continues`: the text goes on from a prompt's, so that a first space is one. skip_special: special tokens
        have no text. min_tokens: the first tokens that end no text by completing a stop string, as in vLLM.
        """
        self._detokenizer = Detokenizer(tokenizer, skip_special=skip_special, continues=continues)
        self._stops = StopMatcher(stops, include_stop=include_stop)
        self._ends: list[int] | None = [] if stops else None  # of each token, in characters of the answer
        self._min_tokens = min_tokens
        self.reasoning = reasoning

    @property
    def kept(self) -> int:
        """How many of the tokens pushed it took to say the stop string that ended the answer."""
        assert self._ends is not None
        return min(bisect_left(self._ends, self._stops.end) + 1, len(self._ends))

    @property
    def _may_end(self) -> bool:
        """Whether enough tokens have come for a stop string to end the response."""
        return self._ends is None or len(self._ends) > self._min_tokens

    def push(self, token_id: int) -> Delta:
        """The next token."""
        text, thought = self._detokenizer.push(token_id), ""
        if self.reasoning is not None:
            text, thought = self.reasoning.push(token_id, text)
        if self._ends is not None:
            self._ends.append((self._ends[-1] if self._ends else 0) + len(text))
        result = self._stops.push(text, may_end=self._may_end)
        return Delta(result.safe, thought, result.matched)

    def finish(self) -> Delta:
        """The end: whatever was held back, at most one match that waited."""
        if self._stops.matched is not None:
            return Delta()
        text, thought = self._detokenizer.flush(), ""
        if self.reasoning is not None:
            text, thought = self.reasoning.finish(text)
        result = self._stops.push(text, may_end=self._may_end)
        if result.matched is not None:
            return Delta(result.safe, thought, result.matched)
        last = self._stops.flush()
        return Delta(result.safe + last.safe, thought, last.matched)
