"""Checks of a tokenizer by text round trips, and of a chat template by rendering conversations."""

import unicodedata

from ridgeline.core.text import ChatTemplates, Tokenizer
from ridgeline.util.untrusted import ModelRefused

PLAIN = "the quick brown fox jumps over the lazy dog"
# Texts that often break tokenizers, by kind.
AWKWARD = {
    "spaces": "two  spaces,   three, and one at the end ",
    "line ends": "a\n\n\tb\r\nc",
    "accents": "na\u00efve caf\u00e9, and e\u0301 in two characters",
    "emoji": "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f3f3\ufe0f\u200d\U0001f308 \U0001f680",
    "scripts": "\u041f\u0440\u0438\u0432\u0435\u0442 \u4f60\u597d \u3053\u3093\u306b\u3061\u306f \ud55c\uad6d\uc5b4 "
    "\u0645\u0631\u062d\u0628\u0627 \u0939\u093f\u0928\u094d\u0926\u0940",
    "digits": "3.14159 1,000,000 0x7f 12345678901234567890",
    "code": "def f(x):\n    return x**2  # {'a': [1]}",
    "rare characters": "\U00010348 \u2603 \ufffd",
}

_TAKE_ANOTHER = "copy the tokenizer of the release again"
_TOOL = {"type": "function", "function": {"name": "adopt", "description": "Adopt a cat.", "parameters": {}}}
_USER, _SYSTEM, _ANSWER = "Which river is the longest?", "You answer briefly.", "The Nile, or the Amazon."


def check_tokenizer(tokenizer: Tokenizer, vocabulary: int | None) -> tuple[list[str], list[str]]:
    """Return the problems of a tokenizer, and remarks.

    If it changes even plain words, or its vocabulary lacks a byte of UTF-8, other changed texts are remarks rather than
    problems.

    Args:
        tokenizer: The tokenizer.
        vocabulary: The model's vocabulary size; None if unknown.
    """
    problems, lost = list[str](), list[str]()
    plain = _back(tokenizer, PLAIN)
    if _bare(plain) != _bare(PLAIN):
        problems.append(f"encoding loses plain words: {PLAIN!r} is decoded as {plain!r}; {_TAKE_ANOTHER}")
    faithful = plain == PLAIN and _spells_all(tokenizer)
    for name, text in AWKWARD.items():
        back = _back(tokenizer, text)
        if _composed(back) != _composed(text):
            if faithful:
                problems.append(f"encoding loses {name}: {text!r} is decoded as {back!r}; {_TAKE_ANOTHER}")
            else:
                lost.append(name)
    if vocabulary is not None and tokenizer.vocab_size > vocabulary:
        beyond = tokenizer.vocab_size - vocabulary
        problems.append(
            f"it has ids up to {tokenizer.vocab_size - 1}, but the model has only {vocabulary}: {beyond} would fail, "
            f"the first is {tokenizer.printable_token(vocabulary)!r}; use the tokenizer of this model, or "
            "enlarge its embedding"
        )
    notes = []
    if lost:
        notes = [f"{', '.join(lost)} change when encoded and decoded: its vocabulary cannot encode every text"]
    return problems, [*notes, *([tokenizer.file_fault_note] if tokenizer.file_fault_note else [])]


def _back(tokenizer: Tokenizer, text: str) -> str:
    return tokenizer.decode(tokenizer.encode(text, add_special=False, parse_special=False))


def _composed(text: str) -> str:
    """Return a text in NFKC form, which removes differences that normalizers may cause."""
    return unicodedata.normalize("NFKC", text)


def _bare(text: str) -> str:
    """Return a text in lower case without white space."""
    return "".join(text.lower().split())


_NEVER = frozenset((0xC0, 0xC1, *range(0xF5, 0x100)))  # bytes that never occur in UTF-8


def _spells_all(tokenizer: Tokenizer) -> bool:
    """Return whether the vocabulary has a token for every byte of UTF-8, so that any text can survive a round trip."""
    single = {tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)}
    return all(bytes([byte]) in single for byte in range(256) if byte not in _NEVER)


def check_templates(templates: ChatTemplates, vocabulary: int | None) -> tuple[list[str], list[str]]:
    """Return the problems of chat templates, and remarks."""
    problems, notes = list[str](), list[str]()
    for name, template in templates.by_name.items():
        called = "" if len(templates.by_name) == 1 else f"{name}: "
        tools = [_TOOL] if name == "tool_use" else None
        user, answer = {"role": "user", "content": _USER}, {"role": "assistant", "content": _ANSWER}
        system = {"role": "system", "content": _SYSTEM}
        try:
            open_ids = template.encode([user], tools=tools)
            closed_ids = template.encode([user, answer], tools=tools, add_generation_prompt=False)
        except ValueError as error:
            problems.append(f"{called}{error}; copy the template of the release again, or give --chat-template FILE")
            continue
        if _ANSWER not in closed_ids.text:
            problems.append(
                f"{called}the prompt lacks the assistant's messages; copy the template of the release again"
            )
        try:
            template.encode([system, user], tools=tools)
        except ModelRefused as error:
            problems.append(f"{called}a system message: {error}; copy the template of the release again")
        except ValueError:
            notes.append(f"{called}does not support a system message")
        if open_ids.ids and vocabulary is not None and max(open_ids.ids) >= vocabulary:
            problems.append(
                f"{called}writes token {max(open_ids.ids)}, but the model has only {vocabulary}; {_TAKE_ANOTHER}"
            )
    return problems, notes
