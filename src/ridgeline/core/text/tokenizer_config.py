"""What a model's folder says about its tokenizer beside the vocabulary: names, added tokens, template text.

Sources: tokenizer_config.json, special_tokens_map.json, config.json and the chat template files.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ridgeline.util.untrusted import PointerFile, read_object, refuse_pointer

NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_PIPED = re.compile(r"<[|\uff5c].+[|\uff5c]>", re.DOTALL)  # U+FF5C: the wide bar of DeepSeek's tokens
_TAGS = re.compile(r"</?(?:think|tool_call|tool_response)>")
_BRACKETED = re.compile(r"<.+>|\[.+\]", re.DOTALL)


@dataclass(frozen=True, slots=True)
class DeclaredToken:
    """One row of `added_tokens_decoder`: a literal that is matched before the text is split into pieces."""

    id: int
    literal: str
    special: bool
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False
    single_word: bool = False


@dataclass(frozen=True)
class TokenizerConfig:
    """The side files, read once. `add_bos` and `add_eos` are None where the folder does not say. strips: whether white
    space on the left and on the right of a special token is part of it, where the folder says it by its literal.
    settings: how text is cut, for a vocabulary that does not say it itself: tokenizer_config.json as it stands.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    extra_special: tuple[str, ...] = ()
    strips: Mapping[str, tuple[bool, bool]] = field(default_factory=dict)
    added: tuple[DeclaredToken, ...] = ()
    add_bos: bool | None = None
    add_eos: bool | None = None
    tokenizer_class: str = ""
    model_type: str = ""
    template_text: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def special_literals(self) -> frozenset[str]:
        """Every literal that the folder calls special."""
        return frozenset((*self.names.values(), *self.extra_special, *(a.literal for a in self.added if a.special)))

    def is_control(self, literal: str, special: bool) -> bool:
        """Whether typed text must never become this token.

        Special tokens; `<|like this|>` whatever its flag says (Qwen marks its fill-in-the-middle tokens as ordinary);
        the tags of reasoning and tool calls; and bracketed added tokens that the folder's own template writes
        (`[INST]`, `<start_of_turn>`). Other added tokens (runs of spaces, HTML tags) are ordinary text that got a
        short cut.
        """
        if special or literal in self.special_literals or _PIPED.fullmatch(literal) or _TAGS.fullmatch(literal):
            return True
        return bool(_BRACKETED.fullmatch(literal)) and literal in self.template_text


def read_declared(folder: Path) -> TokenizerConfig:
    """Read a folder's side files; each may be absent. Raises ValueError naming the file that is malformed."""
    config_path = folder / "tokenizer_config.json"
    config = _object(config_path)
    tokens_map = _object(folder / "special_tokens_map.json")
    special = {**tokens_map, **config}
    return TokenizerConfig(
        names={name: literal for name in NAMES if (literal := _literal(special.get(name)))},
        extra_special=tuple(literal for item in _extra(special) if (literal := _literal(item))),
        strips={**_strips(config), **_strips(tokens_map)},
        added=_added(config, config_path),
        add_bos=_flag(config, "add_bos_token"),
        add_eos=_flag(config, "add_eos_token"),
        tokenizer_class=str(config.get("tokenizer_class") or ""),
        model_type=str(_object(folder / "config.json").get("model_type") or ""),
        template_text="\n".join(source for _, source in read_templates(folder)),
        settings=config,
    )


def read_templates(folder: Path) -> list[tuple[str, str]]:
    """The chat templates of a folder as (name, Jinja source); the unnamed one is "default".

    Order of precedence as in transformers: chat_template.jinja, chat_template.json, tokenizer_config.json.
    """
    jinja = folder / "chat_template.jinja"
    if jinja.is_file():
        refuse_pointer(jinja)
        try:
            return [("default", jinja.read_text(encoding="utf-8"))]
        except (OSError, ValueError) as error:
            raise ValueError(f"{jinja}: not readable as UTF-8; copy the file again") from error
    for path in (folder / "chat_template.json", folder / "tokenizer_config.json"):
        value = _object(path).get("chat_template")
        if isinstance(value, str):
            return [("default", value)]
        if isinstance(value, list):
            return [_named(item, path) for item in value]
        if value is not None:
            raise ValueError(f"{path}: chat_template must be a string or a list of named templates")
    return []


def _named(item: object, path: Path) -> tuple[str, str]:
    if isinstance(item, dict):
        name, source = item.get("name"), item.get("template")
        if isinstance(name, str) and isinstance(source, str):
            return name, source
    raise ValueError(f'{path}: each entry of chat_template needs "name" and "template" strings')


def _added(config: Mapping[str, Any], path: Path) -> tuple[DeclaredToken, ...]:
    table = config.get("added_tokens_decoder") or {}
    flags = ("lstrip", "rstrip", "normalized", "single_word")
    try:
        rows = [
            DeclaredToken(int(key), row["content"], bool(row.get("special")), **{f: bool(row.get(f)) for f in flags})
            for key, row in table.items()
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f'{path}: added_tokens_decoder must map ids to objects with "content"') from error
    return tuple(sorted(rows, key=lambda row: row.id))


def _object(path: Path) -> dict[str, Any]:
    """The object of a side file; {} where the file is absent."""
    if not path.is_file():
        return {}
    try:
        return read_object(path)
    except PointerFile:
        raise
    except ValueError as error:
        raise ValueError(f"{error}; copy the file again") from None


def _literal(value: object) -> str:
    """A token is written as a string or as an object with "content"."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _extra(values: Mapping[str, Any]) -> list[object]:
    """The special tokens without a role, under their old name and their new one."""
    return [*_list(values.get("additional_special_tokens")), *_list(values.get("extra_special_tokens"))]


def _strips(values: Mapping[str, Any]) -> dict[str, tuple[bool, bool]]:
    """As Declared.strips, of the tokens that a file writes as objects."""
    tokens = [values.get(name) for name in NAMES] + _extra(values)
    return {
        _literal(token): (bool(token.get("lstrip")), bool(token.get("rstrip")))
        for token in tokens
        if isinstance(token, dict)
    }


def _list(value: object) -> list[object]:
    if isinstance(value, dict):  # newer folders name their extra tokens
        return list(value.values())
    return value if isinstance(value, list) else []


def _flag(config: Mapping[str, Any], name: str) -> bool | None:
    value = config.get(name)
    return value if isinstance(value, bool) else None
