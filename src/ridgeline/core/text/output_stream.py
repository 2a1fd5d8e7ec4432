"""The output pipeline of one choice: generated token ids become the text that the client can see."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from ridgeline.core.text.detokenizer import Detokenizer
from ridgeline.core.text.reasoning import ReasoningSplitter
from ridgeline.core.text.stop_strings import StopMatcher
from ridgeline.core.text.tokenizer import Tokenizer


class Delta(NamedTuple):
    """The text that one generated token releases."""

    text: str = ""
    """The new text of the response that a generated token releases."""
    reasoning: str = ""
    """The new text of the reasoning section that a generated token releases."""
    stop: str | None = None
    """The stop string that ended the response, or None."""


class OutputStream:
    r"""A pipeline that detokenizes generated ids, separates reasoning sections, and applies stop strings.

    Stop strings apply only to the response: a caller's stop string `"\n\n"` does not refer to the model's reasoning.
    Without `reasoning` all text is response text. Call `push` once per token and `finish` at the end. A match ends the
    stream, and `finish` is then optional. An end-of-sequence token can be pushed: it is a special token and has no text
    unless `skip_special` is False.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stops: Sequence[str] = (),
        include_stop: bool = False,
        skip_special: bool = True,
        reasoning: ReasoningSplitter | None = None,
        continues: bool = False,
        min_tokens: int = 0,
    ) -> None:
        """Start an empty output stream.

        Args:
            tokenizer: Decodes the token ids.
            stops: Stop strings of the request.
            include_stop: Whether the text includes the stop string that ended it.
            skip_special: Whether to omit the text of special tokens.
            reasoning: Splits off the reasoning sections, if the model writes any.
            continues: Whether the output continues the text of the prompt, so that a leading space belongs to the text.
            min_tokens: Number of first tokens that cannot end the text by completing a stop string, as in vLLM.
        """
        self._detokenizer = Detokenizer(tokenizer, skip_special=skip_special, continues=continues)
        self._stops = StopMatcher(stops, include_stop=include_stop)
        self._ends: list[int] | None = [] if stops else None  # end of each token, in characters of the response
        self._min_tokens = min_tokens
        self.reasoning = reasoning

    @property
    def tokens_through_stop(self) -> int:
        """The number of pushed tokens up to the one that completed the matched stop string."""
        assert self._ends is not None
        return min(bisect_left(self._ends, self._stops.end) + 1, len(self._ends))

    @property
    def _may_end(self) -> bool:
        """Whether more than `min_tokens` tokens have arrived, so that a stop string can end the response."""
        return self._ends is None or len(self._ends) > self._min_tokens

    def push(self, token_id: int) -> Delta:
        """Add a generated token and return the text that it releases."""
        # A marker without text of its own would leave half a character to the section after it.
        cut = self._detokenizer.flush() if self.reasoning is not None and self.reasoning.is_marker(token_id) else ""
        text, thought = cut + self._detokenizer.push(token_id), ""
        if self.reasoning is not None:
            text, thought = self.reasoning.push(token_id, text)
        if self._ends is not None:
            self._ends.append((self._ends[-1] if self._ends else 0) + len(text))
        result = self._stops.push(text, may_end=self._may_end)
        return Delta(result.safe, thought, result.matched)

    def finish(self) -> Delta:
        """Release the text that is held back at the end of an output stream.

        A complete stop string that was waiting for an earlier one can match here.
        """
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
