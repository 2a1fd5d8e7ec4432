"""A text taken apart."""

from ridgeline.core.text import TokenCounts, count_tokens, token_pieces
from ridgeline.core.text.byte_tokenizer import ByteTokenizer


def test_pieces_are_printable_and_exact() -> None:
    text = "é\n<|endoftext|>"
    found = token_pieces(ByteTokenizer(), text)
    assert [piece.piece for piece in found] == ["\\xc3", "\\xa9", "\\n", "<|endoftext|>"]
    assert b"".join(piece.data for piece in found) == "é\n".encode()
    assert [piece.id for piece in found] == ByteTokenizer().encode(text, add_special=False)


def test_density() -> None:
    counted = count_tokens(ByteTokenizer(), "two  wörds")
    assert counted == TokenCounts(tokens=11, characters=10, words=2, utf8_bytes=11)
    assert (counted.characters_per_token, counted.tokens_per_word) == (10 / 11, 5.5)
    assert count_tokens(ByteTokenizer(), "").characters_per_token == 0.0
