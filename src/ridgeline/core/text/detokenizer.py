"""Token ids to text while they arrive, whole characters only."""

import codecs

from ridgeline.core.text.tokenizer import Tokenizer


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
        return self.push_bytes(self.data(token_id))

    def data(self, token_id: int) -> bytes:
        """Return the bytes that a token adds to the text."""
        return self._tokenizer.token_bytes(token_id, self._skip_special)

    def push_bytes(self, data: bytes) -> str:
        """Return the text that these bytes complete, possibly ""."""
        return self._release(self._decoder.decode(data))

    @property
    def pending(self) -> bytes:
        """The bytes of a character that is still to be completed."""
        return self._decoder.getstate()[0]

    def flush(self) -> str:
        """The text of an unfinished last character: one U+FFFD or nothing. Ends the stream."""
        return self._release(self._decoder.decode(b"", final=True))

    def _release(self, text: str) -> str:
        if self._strip and text:  # only the first character of the whole text can be the dummy space
            self._strip = False
            return text[1:] if text.startswith(" ") else text
        return text


class TokenOffsets:
    """The places of tokens in the text that `Detokenizer` makes of them, in characters.

    The place of a token is that of the character in which its first byte falls, so that all tokens of one character
    have the same place. That of a token without text is behind the last whole character before it.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True, continues: bool = False) -> None:
        """Begin an empty text; the arguments are those of `Detokenizer`."""
        self._detokenizer = Detokenizer(tokenizer, skip_special=skip_special, continues=continues)
        self._length = 0  # of the text that is complete

    def push(self, token_id: int) -> int:
        """Return the place of the next token."""
        data = self._detokenizer.data(token_id)
        # The first byte may be what shows that the bytes before it are no character.
        begun = self._detokenizer.push_bytes(data[:1])
        # Bytes that wait may be several characters in the end: Python waits after ED A0, which is no character.
        waiting = len(self._detokenizer.pending.decode("utf-8", "replace"))
        place = max(0, self._length + len(begun) + waiting - 1) if data else self._length
        self._length += len(begun) + len(self._detokenizer.push_bytes(data[1:]))
        return place
