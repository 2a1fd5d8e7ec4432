"""The catalogue: configs of releases, by the names that people call them.

A model of text is one config.json. A pipeline that draws is a file of its own with the configs of its components, of
which one may be a model of the catalogue, and with what its release is usually asked for.
"""

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ridgeline.core.models.common.fields import Fields, read_object

CATALOGUE = Path(__file__).resolve().parents[2] / "data" / "catalogue"
_PIPELINES, _PARAMETERS = CATALOGUE / "pipelines", CATALOGUE / "parameters.toml"
# Words in the names of publishers that say nothing of a model's shape.
_ADDED = {"meta", "instruct", "chat", "it", "hf", "base"}


def model_names() -> tuple[str, ...]:
    """The models of text, in order."""
    return tuple(sorted(path.stem for path in CATALOGUE.glob("*.json")))


def pipeline_names() -> tuple[str, ...]:
    """The pipelines that draw, in order."""
    return tuple(sorted(path.stem for path in _PIPELINES.glob("*.json")))


def known_names() -> tuple[str, ...]:
    """All of both."""
    return *model_names(), *pipeline_names()


def is_listed(name: str) -> bool:
    """Whether it is the name of one, just as it is written."""
    return "/" not in name and ((CATALOGUE / f"{name}.json").is_file() or (_PIPELINES / f"{name}.json").is_file())


def is_pipeline(name: str) -> bool:
    """Whether it is the name of one that draws."""
    return "/" not in name and (_PIPELINES / f"{name}.json").is_file()


def spelt_as(name: str) -> str | None:
    """The one that a name spells: `Qwen/Qwen3-8B` and `qwen3_8b` are qwen3-8b. None for what spells none of them:
    `qwen3-8b-fp8` is another checkpoint.
    """
    spelt = _letters(name.rpartition("/")[2])
    return next((known for known in known_names() if _letters(known) == spelt), None)


def config_of(name: str) -> Fields:
    """The config of a model of text. Errors name the model, not where its config is installed."""
    return Fields(read_object(CATALOGUE / f"{name}.json"), name)


def pipeline_entry(name: str) -> tuple[str, dict[str, Fields], Mapping[str, Any]]:
    """Of a pipeline: the name of its class, the configs of its components by theirs, and what its release is usually
    asked for.
    """
    entry = read_object(_PIPELINES / f"{name}.json")
    configs = {
        part: config_of(given) if isinstance(given, str) else Fields(given, f"{name}/{part}")
        for part, given in entry["components"].items()
    }
    return entry["_class_name"], configs, entry["usual"]


@cache
def parameter_counts() -> Mapping[str, tuple[int, int]]:
    """By name, the parameters of each, and those that a token passes through; of a pipeline those of its denoiser, all
    of its experts and one. Counting them takes building them all; a test holds these to what is built.
    """
    entries = tomllib.loads(_PARAMETERS.read_text(encoding="utf-8"))
    return {name: (counts[0], counts[-1]) for name, counts in entries.items()}


def _letters(name: str) -> str:
    """A name without its hyphens, and without the words that publishers add to what has the same config."""
    words = re.split(r"[-_ ]+", name.lower())
    return "".join(word for word in words if word not in _ADDED)
