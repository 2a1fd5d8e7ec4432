"""Well-known models that are not covered, and what is missing for each: catalogue/unsupported.toml."""

import re
import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Any

_NO_LETTERS = re.compile(r"[^a-z0-9]")
_VERSION, _WORD = re.compile(r"\d"), re.compile(r"[A-Z][A-Za-z]*")


def missing_for(name: str) -> str | None:
    """Return a sentence with what is missing for a model that is not covered; None for any other model. name: of the
    catalogue, of its architecture, or its `model_type`."""
    text = resources.files("ridgeline").joinpath("catalogue", "unsupported.toml").read_text(encoding="utf-8")
    entries = tomllib.loads(text)
    entry = next((entry for known, entry in entries.items() if _is_named(name, known, entry)), None)
    entry = entry or next((entry for entry in entries.values() if _is_copy(name, entry["architecture"])), None)
    if entry is None:
        return None
    architecture = "" if entry["architecture"] == name else f" ({entry['architecture']})"
    return f"{name}{architecture} is not supported yet; missing: {', '.join(entry['missing'])}"


def _is_named(name: str, known: str, entry: Mapping[str, Any]) -> bool:
    """Return whether a name is one of an entry's own. known: the name of the catalogue."""
    architectures = (entry["architecture"], *entry.get("also", ()))
    stems = (known, *map(_stem, architectures))
    return name in architectures or _letters(name) in map(_letters, stems)


def _is_copy(name: str, architecture: str) -> bool:
    """Return whether a name is an architecture's with another ending or a word more or less before it: copies of
    MiniMaxM3SparseForConditionalGeneration say MiniMaxM3ForCausalLM. Both have the version, and the word has none."""
    short, long = sorted((_stem(name), _stem(architecture)), key=len)
    more = long.removeprefix(short)
    return bool(_VERSION.search(short)) and long.startswith(short) and (not more or bool(_WORD.fullmatch(more)))


def _stem(architecture: str) -> str:
    return architecture.partition("For")[0]


def _letters(name: str) -> str:
    return _NO_LETTERS.sub("", name.lower())
