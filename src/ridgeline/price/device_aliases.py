"""What people call a card: spellings that can mean only one, and the names to offer for those that cannot."""

import difflib
import re
from collections.abc import Sequence
from itertools import product

# Of a full title, but of no name: who made it, and what sort of thing it is.
_MAKERS = {"nvidia", "geforce", "tesla", "amd", "instinct", "radeon", "intel", "google", "apple", "gpu"}
# Words of a name that people leave out. Not the size of the memory or `ti`: those are other cards.
_LEFT_OUT = {"rtx", "sxm", "pcie", "nvl"}
_PORTS = re.compile(r"(sxm)\d+")


def resolve_device_name(wanted: str, known: Sequence[str]) -> str:
    """The one of the `known` names that a spelling means: `rtx4090`, `RTX 4090` and `4090` are rtx-4090.

    Raises ValueError in one line: with the exact names for what may be several (`a100`), with the nearest otherwise.
    """
    name = wanted.strip().lower()
    if name in known:
        return name
    spelt = "".join(word for word in _words(name) if word not in _MAKERS)
    meant = [card for card in known if spelt and spelt in _spellings(card)]
    if len(meant) == 1:
        return meant[0]
    family = meant or [card for card in known if spelt and card.replace("-", "").startswith(spelt)]
    if len(family) > 1:
        raise ValueError(f"{wanted!r} is not one card; say which: {', '.join(family)}")
    near = list(dict.fromkeys((*family, *_alike(name, known))))
    offer = f"nearest are {', '.join(near)}; " if near else ""
    raise ValueError(
        f"unknown card {wanted!r}; {offer}`ridgeline plan --list` names all; or give a .json or .toml file"
    )


def similar_device_names(wanted: str, known: Sequence[str]) -> list[str]:
    """The names to offer for one that is none of the `known`: the one that it spells, else those most like it."""
    try:
        return [resolve_device_name(wanted, known)]
    except ValueError:
        return _alike(wanted.strip().lower(), known)


def _spellings(card: str) -> set[str]:
    """A name without its hyphens, with and without the words that may be left out."""
    choices = ((word, "") if word in _LEFT_OUT else (word,) for word in _words(card))
    return {"".join(words) for words in product(*choices)}


def _words(name: str) -> list[str]:
    """`NVIDIA A100-SXM4-80GB` as its words; a port has no number, and + is `plus`."""
    words = re.findall(r"[a-z0-9]+", name.replace("+", " plus "))
    return [_PORTS.sub(r"\1", word) for word in words]


def _alike(name: str, known: Sequence[str]) -> list[str]:
    """Names in which most letters are the same, then those of the same family."""
    family = [card for card in known if name.partition("-")[0] == card.partition("-")[0]]
    return list(dict.fromkeys((*difflib.get_close_matches(name, known, 5, 0.4), *family)))
