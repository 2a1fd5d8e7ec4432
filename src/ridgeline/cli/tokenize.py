"""`ridgeline tokenize` shows how a model splits a text into tokens."""

import dataclasses
from typing import Annotated

import typer

from ridgeline.cli import options
from ridgeline.cli.console import print_json, read_text
from ridgeline.core.checkpoint.source_tokenizer import tokenizer_of
from ridgeline.core.text import TokenPiece, count_tokens, token_pieces

_SPECIAL = (
    "Encode control tokens that are written in the text as control tokens; by default they are plain "
    "text, as in a prompt."
)


def tokenize(
    model: Annotated[
        str,
        typer.Argument(
            help="A folder with a tokenizer, a built-in model, or an id in the Hugging Face cache.",
            callback=options.report_model_choice,
        ),
    ],
    text: Annotated[str, typer.Argument(help="The text; - reads standard input.")],
    special: Annotated[bool, typer.Option("--special", help=_SPECIAL)] = False,
    as_json: options.Json = False,
) -> None:
    """Show the tokens of a text: id, piece, bytes, and the mean number of characters per token."""
    tokenizer = tokenizer_of(model)
    text = read_text(text)
    found = token_pieces(tokenizer, text, parse_special=special)
    ratio = count_tokens(tokenizer, text, parse_special=special)
    if as_json:
        rows = [{"id": p.id, "piece": p.piece, "bytes": p.data.hex()} for p in found]
        print_json({**dataclasses.asdict(ratio), "count": ratio.tokens, "tokens": rows})
        return
    for p in found:
        print(_line(p))
    print(
        f"{ratio.tokens} tokens, {ratio.characters} characters, {ratio.words} words: {ratio.characters_per_token:.2f} "
        f"characters per token, {ratio.tokens_per_word:.2f} tokens per word"
    )
    if (in_prompt := len(tokenizer.encode(text, parse_special=special))) > ratio.tokens:
        print(f"{in_prompt} tokens with the special tokens that the tokenizer adds to a prompt")


def _line(piece: TokenPiece) -> str:
    """Return a token's id, text and bytes.

    A token that is not valid text by itself, such as part of a character, has no text.
    """
    try:
        text = repr(piece.piece) if piece.data.decode() or not piece.data else ""
    except UnicodeDecodeError:
        text = ""
    return f"{piece.id:>8}  {text:24}  {piece.data.hex(' ')}".rstrip()
