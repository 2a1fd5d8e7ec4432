"""Token ids to text while they arrive, whole characters only."""

import codecs

from ridgeline.text.tokenizer import Tokenizer


class Detokenizer:
    """Releases text as soon as no later token can change it.

    The pieces of push and flush joined equal `tokenizer.decode(ids)`. A character whose bytes are spread over tokens
    is held until it is whole; invalid bytes become U+FFFD once they are known to be invalid. O(bytes of the token).
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True, continues: bool = False) -> None:
        """`continues`: the ids go on from earlier text, so that a first space is one."""
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = tokenizer.strips_space and not continues

    def push(self, token_id: int) -> str:
        """The text that this token completes, possibly ""."""
        return self._release(self._decoder.decode(self._tokenizer.token_bytes(token_id, self._skip_special)))

    def flush(self) -> str:
        """The text of an unfinished last character: one U+FFFD or nothing. Ends the stream."""
        return self._release(self._decoder.decode(b"", final=True))

    def _release(self, text: str) -> str:
        if self._strip and text:  # only the first character of the whole text can be the dummy space
            self._strip = False
            return text[1:] if text.startswith(" ") else text
        return text
