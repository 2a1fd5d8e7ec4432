"""Declarations of a model folder about its tokenizer apart from the vocabulary: names, added tokens, chat templates.

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
_TAGS = re.compile(r"</?(?:think|tool_calls?|tool_responses?)(?::\w+)?>")
_BRACKETED = re.compile(r"<.+>|\[.+\]", re.DOTALL)


@dataclass(frozen=True, slots=True)
class DeclaredToken:
    """One entry of `added_tokens_decoder`: a literal that is matched before the text is split into pieces."""

    id: int
    literal: str
    special: bool
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False
    single_word: bool = False


@dataclass(frozen=True)
class TokenizerConfig:
    """The tokenizer declarations of a model folder, read once from its side files."""

    names: Mapping[str, str] = field(default_factory=dict)
    """The literals of a tokenizer's special tokens by role ("bos_token")."""
    extra_special: tuple[str, ...] = ()
    """The literals of a tokenizer's special tokens without a role."""
    strips: Mapping[str, tuple[bool, bool]] = field(default_factory=dict)
    """Whether white space to the left and right of a special token belongs to it, by literal, if declared."""
    added: tuple[DeclaredToken, ...] = ()
    """The entries of `added_tokens_decoder`, by ascending id."""
    add_bos: bool | None = None
    """Whether encoding adds BOS, or None if the model folder does not say."""
    add_eos: bool | None = None
    """Whether encoding adds EOS, or None if the model folder does not say."""
    tokenizer_class: str = ""
    """The `tokenizer_class` of tokenizer_config.json, or ""."""
    model_type: str = ""
    """The `model_type` of config.json, or ""."""
    template_text: str = ""
    """The source of all chat templates of a folder together."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The content of tokenizer_config.json.

    It defines how to split text if the vocabulary does not.
    """

    @cached_property
    def special_literals(self) -> frozenset[str]:
        """All literals that the folder declares as special tokens."""
        return frozenset((*self.names.values(), *self.extra_special, *(a.literal for a in self.added if a.special)))

    def is_control(self, literal: str, special: bool) -> bool:
        """Return whether user text must never become this token.

        Control tokens are: special tokens; `<|literals like this|>` whatever their flag (Qwen marks its
        fill-in-the-middle tokens as ordinary); the tags of reasoning and tool calls; and bracketed added tokens that
        the folder's own chat template writes (`[INST]`, `<start_of_turn>`). Other added tokens (runs of spaces, HTML
        tags) are only abbreviations of ordinary text.
        """
        if special or literal in self.special_literals or _PIPED.fullmatch(literal) or _TAGS.fullmatch(literal):
            return True
        return bool(_BRACKETED.fullmatch(literal)) and literal in self.template_text


def read_declared(folder: Path) -> TokenizerConfig:
    """Read the tokenizer declarations of a model folder; every side file is optional.

    Raises:
        ValueError: If a file is malformed. The message names the file.
    """
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
    """Return the chat templates of a folder as (name, Jinja source); an unnamed template is called "default".

    Order of precedence as in transformers: chat_template.jinja, chat_template.json, tokenizer_config.json.

    Raises:
        ValueError: If a file is malformed.
    """
    jinja = folder / "chat_template.jinja"
    if jinja.is_file():
        refuse_pointer(jinja)
        try:
            return [("default", jinja.read_text(encoding="utf-8"))]
        except (OSError, ValueError) as error:
            raise ValueError(f"{jinja}: the file is not UTF-8 text; copy the file again") from error
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
    """Return the name and source of one entry of a `chat_template` list."""
    if isinstance(item, dict):
        name, source = item.get("name"), item.get("template")
        if isinstance(name, str) and isinstance(source, str):
            return name, source
    raise ValueError(f'{path}: each entry of chat_template needs "name" and "template" strings')


def _added(config: Mapping[str, Any], path: Path) -> tuple[DeclaredToken, ...]:
    """Return the entries of added_tokens_decoder, by ascending id."""
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
    """Return the JSON object in one of a model folder's side files, or {} if the file is absent."""
    if not path.is_file():
        return {}
    try:
        return read_object(path)
    except PointerFile:
        raise
    except ValueError as error:
        raise ValueError(f"{error}; copy the file again") from None


def _literal(value: object) -> str:
    """Return the literal of a token that is stored as a string or as an object with "content"; "" for anything else."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _extra(values: Mapping[str, Any]) -> list[object]:
    """Return the special tokens without a role, from the old key and the new one."""
    return [*_list(values.get("additional_special_tokens")), *_list(values.get("extra_special_tokens"))]


def _strips(values: Mapping[str, Any]) -> dict[str, tuple[bool, bool]]:
    """Return, by literal, whether white space to the left and right of a special token belongs to it.

    Tokens that are stored as strings do not say it and are omitted.
    """
    tokens = [values.get(name) for name in NAMES] + _extra(values)
    return {
        _literal(token): (bool(token.get("lstrip")), bool(token.get("rstrip")))
        for token in tokens
        if isinstance(token, dict)
    }


def _list(value: object) -> list[object]:
    """Return the special tokens that a config gives as a list, or as the values of an object."""
    if isinstance(value, dict):  # newer folders name their extra tokens
        return list(value.values())
    return value if isinstance(value, list) else []


def _flag(config: Mapping[str, Any], name: str) -> bool | None:
    """Return a boolean setting of a config, or None if it is absent or not a boolean."""
    value = config.get(name)
    return value if isinstance(value, bool) else None
