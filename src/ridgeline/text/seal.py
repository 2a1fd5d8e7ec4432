"""A copy of a tokenizer in which the control tokens cannot be spelled by text.

Each control token keeps its id but gets a secret name, drawn at random per process: the literals in a user's text are
then ordinary text for every stage (added-token matching, the normaliser, a Unigram model that lists `</s>` as a
piece), while a prompt's own control tokens are written by their secret names. One call encodes the whole prompt, so
rules that depend on the position in it (SentencePiece's dummy prefix) hold as without the seal.
"""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers


@dataclass(frozen=True)
class Sealed:
    """The sealed copy and the secret name of each control id."""

    tokenizer: tokenizers.Tokenizer
    secret: Mapping[int, str]


def seal(tokenizer: tokenizers.Tokenizer, control: Mapping[str, int]) -> Sealed:
    """Rename the control tokens. Costs one serialisation of the tokenizer (about a second for 150,000 tokens)."""
    nonce = secrets.token_hex(16)
    renamed = {literal: f"<{nonce}:{index}>" for literal, index in control.items()}
    state = json.loads(tokenizer.to_str())
    for entry in state["added_tokens"]:
        entry["content"] = renamed.get(entry["content"], entry["content"])
    _rename_model(state["model"], renamed)
    copy = tokenizers.Tokenizer.from_str(json.dumps(state))
    for literal, index in control.items():
        assert copy.token_to_id(renamed[literal]) == index, f"seal moved {literal!r}"
    return Sealed(copy, {control[literal]: secret for literal, secret in renamed.items()})


def _rename_model(model: dict[str, Any], renamed: Mapping[str, str]) -> None:
    """Rename the control tokens that are also pieces of the model, and drop the merges that would build them."""
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        model["vocab"] = {renamed.get(piece, piece): index for piece, index in vocab.items()}
    else:  # Unigram: pairs of piece and score
        model["vocab"] = [[renamed.get(piece, piece), score] for piece, score in vocab]
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = renamed.get(model["unk_token"], model["unk_token"])
    if "merges" in model:
        model["merges"] = [merge for merge in model["merges"] if not _touches(merge, renamed)]


def _touches(merge: str | list[str], renamed: Mapping[str, str]) -> bool:
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return left in renamed or right in renamed or left + right in renamed
