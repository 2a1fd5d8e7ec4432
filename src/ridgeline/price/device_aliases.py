"""Resolution of informal device names: spellings that can mean only one device, and suggestions for the others."""

import difflib
import re
from collections.abc import Sequence
from itertools import product

# Words of full titles that no catalogue name contains: makers and product lines.
_MAKERS = {
    "nvidia", "geforce", "tesla", "jetson", "amd", "instinct", "radeon", "intel", "google", "apple", "aws", "ampere",
    "gpu",
}  # fmt: skip
# Words of a name that people omit. The memory size and `ti` are not optional: they denote other devices.
_LEFT_OUT = {"rtx", "sxm", "pcie", "nvl"}
_PORTS = re.compile(r"(sxm)\d+")
# Other names of a device, without hyphens and makers: of its chip, of the box that it is sold in, or of its driver.
OTHER_NAMES = {
    "strixhalo": "ryzen-ai-max-395",
    "ryzenaimaxplus395": "ryzen-ai-max-395",
    "aimaxplus395": "ryzen-ai-max-395",
    "aimax395": "ryzen-ai-max-395",
    "8060s": "ryzen-ai-max-395",
    "dgxspark": "gb10",
    "gh200480gb": "gh200",
    "thor": "agx-thor-128gb",
    "agxthor": "agx-thor-128gb",
    "t5000": "agx-thor-128gb",
    "rtxpro6000workstation": "rtx-pro-6000-ws",
    "rtxpro6000blackwellworkstationedition": "rtx-pro-6000-ws",
    "rtxpro6000blackwellmaxqworkstationedition": "rtx-pro-6000-max-q",
    "rtxpro6000blackwellserveredition": "rtx-pro-6000-server",
    "r9700": "ai-pro-r9700",
    "trainium": "trainium1",
    "trn1": "trainium1",
    "inf2": "inferentia2",
    "b70": "arc-pro-b70",
    "rtx5060ti": "rtx-5060-ti-16gb",
    "5060ti": "rtx-5060-ti-16gb",
    "4060ti": "rtx-4060-ti-16gb",
}


def resolve_device_name(wanted: str, known: Sequence[str]) -> str:
    """Return the one of the `known` names that a spelling means: `rtx4090`, `RTX 4090` and `4090` all mean rtx-4090.

    Raises:
        ValueError: If the name is ambiguous, such as `a100` (the message lists the exact names), or unknown (it lists
            the nearest names, if any). The message has one line.
    """
    name = wanted.strip().lower()
    if name in known:
        return name
    spelt = "".join(word for word in _words(name) if word not in _MAKERS)
    meant = [
        known_name for known_name in known if spelt and spelt in (_spellings(known_name) | _other_names(known_name))
    ]
    if len(meant) == 1:
        return meant[0]
    family = meant or [known_name for known_name in known if spelt and known_name.replace("-", "").startswith(spelt)]
    if len(family) > 1:
        raise ValueError(f"{wanted!r} matches several devices; name one of {', '.join(family)}")
    near = list(dict.fromkeys((*family, *_alike(name, known))))
    offer = f"similar names are {', '.join(near)}; " if near else ""
    raise ValueError(f"unknown device {wanted!r}; {offer}see `ridgeline plan --list`, or give a .json or .toml file")


def similar_device_names(wanted: str, known: Sequence[str]) -> list[str]:
    """Return suggestions for an unknown device name: the device that it spells, otherwise the most similar names."""
    try:
        return [resolve_device_name(wanted, known)]
    except ValueError:
        return _alike(wanted.strip().lower(), known)


def _spellings(device: str) -> set[str]:
    """Return the spellings of a device name without hyphens, with and without its optional words."""
    choices = ((word, "") if word in _LEFT_OUT else (word,) for word in _words(device))
    return {"".join(words) for words in product(*choices)}


def _other_names(device: str) -> set[str]:
    return {other for other, name in OTHER_NAMES.items() if name == device}


def _words(name: str) -> list[str]:
    """Split a device name such as `NVIDIA A100-SXM4-80GB` into words.

    Port names lose their number (sxm4 becomes sxm), and + becomes `plus`.
    """
    words = re.findall(r"[a-z0-9]+", name.replace("+", " plus "))
    return [_PORTS.sub(r"\1", word) for word in words]


def _alike(name: str, known: Sequence[str]) -> list[str]:
    """Return the most similar names, then all others of the same family."""
    family = [known_name for known_name in known if name.partition("-")[0] == known_name.partition("-")[0]]
    return list(dict.fromkeys((*difflib.get_close_matches(name, known, 5, 0.4), *family)))
