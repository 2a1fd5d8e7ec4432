"""Incremental decoding of generated token ids to text, in whole characters."""

import codecs

from ridgeline.core.text.tokenizer import Tokenizer


class Detokenizer:
    """A streaming detokenizer that releases text as soon as no later token can change it.

    The texts of push and flush together equal `tokenizer.decode(ids)`, but keep a leading space if `continues`. A
    character whose bytes are spread over several tokens is held until it is complete; invalid bytes become U+FFFD once
    they are known to be invalid. O(bytes of the token).
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True, continues: bool = False) -> None:
        """Start detokenizing an empty text.

        Args:
            tokenizer: Tokenizer of the model.
            skip_special: Whether to omit special tokens.
            continues: Whether the ids continue an earlier text, so that a leading space belongs to the text.
        """
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = tokenizer.strips_space and not continues

    def push(self, token_id: int) -> str:
        """Return the text that a token completes; it is "" if a character is incomplete."""
        return self.push_bytes(self.token_bytes(token_id))

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token adds to the text."""
        return self._tokenizer.token_bytes(token_id, self._skip_special)

    def push_bytes(self, data: bytes) -> str:
        """Return the text that these bytes complete; it is "" if a character is incomplete."""
        return self._release(self._decoder.decode(data))

    @property
    def pending(self) -> bytes:
        """The bytes of a character that is not complete yet."""
        return self._decoder.getstate()[0]

    def flush(self) -> str:
        """Return the text of an incomplete last character where the text ends: U+FFFD per invalid part, or ""."""
        return self._release(self._decoder.decode(b"", final=True))

    def _release(self, text: str) -> str:
        """Return decoded text without the one space at the start of the stream that the tokenizer's decoding drops."""
        if self._strip and text:  # only the first character of the whole text can be the dummy space
            self._strip = False
            return text[1:] if text.startswith(" ") else text
        return text


class TokenOffsets:
    """A counter that computes the character offset of each token in the text of a `Detokenizer`.

    The offset of a token is that of the character that contains its first byte, so all tokens of one character have the
    same offset. A token without text has the offset after the last whole character before it.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True, continues: bool = False) -> None:
        """Start counting offsets at an empty text; the arguments are those of `Detokenizer`."""
        self._detokenizer = Detokenizer(tokenizer, skip_special=skip_special, continues=continues)
        self._length = 0  # length of the complete text

    def push(self, token_id: int) -> int:
        """Return the character offset of the next token."""
        data = self._detokenizer.token_bytes(token_id)
        # The first byte may show that the bytes before it are not a valid character.
        begun = self._detokenizer.push_bytes(data[:1])
        # Pending bytes can become several characters: Python waits after ED A0, which is not a character.
        waiting = len(self._detokenizer.pending.decode("utf-8", "replace"))
        place = max(0, self._length + len(begun) + waiting - 1) if data else self._length
        self._length += len(begun) + len(self._detokenizer.push_bytes(data[1:]))
        return place
