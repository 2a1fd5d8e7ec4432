"""The catalogue: the configs of model releases by their common names.

A single model (a language model, an encoder, or Whisper) is one JSON file, its config.json. An image or video pipeline
is a file with the configs of its components, each of which can be the name of a single model of the catalogue, and with
the usual settings of its requests.
"""

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ridgeline.core.models.common.fields import Fields, read_object

CATALOGUE = Path(__file__).resolve().parents[2] / "data" / "catalogue"
"""The folder of the catalogue, which has the configs of model releases."""
_PIPELINES, _PARAMETERS = CATALOGUE / "pipelines", CATALOGUE / "parameters.toml"
_REPOSITORIES = CATALOGUE / "repositories.toml"
# Words in release names that do not change the shape of a model.
_ADDED = {"meta", "instruct", "chat", "it", "hf", "base"}


def model_names() -> tuple[str, ...]:
    """Return the names of the catalogue's single models, which are no image or video pipelines, sorted."""
    return tuple(sorted(path.stem for path in CATALOGUE.glob("*.json")))


def pipeline_names() -> tuple[str, ...]:
    """Return the names of the catalogue's image and video pipelines, sorted."""
    return tuple(sorted(path.stem for path in _PIPELINES.glob("*.json")))


def known_names() -> tuple[str, ...]:
    """Return the names of all models and pipelines of the catalogue."""
    return *model_names(), *pipeline_names()


def is_listed(name: str) -> bool:
    """Return whether the catalogue has a model or pipeline of exactly this name."""
    return "/" not in name and ((CATALOGUE / f"{name}.json").is_file() or (_PIPELINES / f"{name}.json").is_file())


def is_pipeline(name: str) -> bool:
    """Return whether the catalogue has an image or video pipeline of exactly this name."""
    return "/" not in name and (_PIPELINES / f"{name}.json").is_file()


def match_spelling(name: str) -> str | None:
    """Return the catalogue name that a name spells, for example qwen3-8b for `Qwen/Qwen3-8B` or `qwen3_8b`.

    The result is None if it spells none: `qwen3-8b-fp8` is another checkpoint.
    """
    spelt = _letters(name.rpartition("/")[2])
    return next((known for known in known_names() if _letters(known) == spelt), None)


def config_of(name: str) -> Fields:
    """Return the config of a single model of the catalogue; its errors name the model, not the installed file."""
    return Fields(read_object(CATALOGUE / f"{name}.json"), name)


def pipeline_entry(name: str) -> tuple[str, dict[str, Fields], Mapping[str, Any]]:
    """Return the class of a catalogue pipeline, its component configs by name, and its usual request settings."""
    entry = read_object(_PIPELINES / f"{name}.json")
    configs = {
        part: config_of(given) if isinstance(given, str) else Fields(given, f"{name}/{part}")
        for part, given in entry["components"].items()
    }
    return entry["_class_name"], configs, entry["usual"]


@cache
def parameter_counts() -> Mapping[str, tuple[int, int]]:
    """Return the parameters of each catalogue model by name: all of them, and those that each token passes through.

    For a pipeline these are those of its denoiser: of all its experts, and of one. The counts are stored because
    counting requires building every model. A test compares them with the built models.
    """
    entries = tomllib.loads(_PARAMETERS.read_text(encoding="utf-8"))
    return {name: (counts[0], counts[-1]) for name, counts in entries.items()}


def repository_of(name: str) -> str | None:
    """Return the Hugging Face repository of a language model of the catalogue, or None if it is not known."""
    return tomllib.loads(_REPOSITORIES.read_text(encoding="utf-8")).get(name)


def _letters(name: str) -> str:
    """Return a name in lower case, without separators and words such as "instruct".

    The words are those of publishers that do not change the config.
    """
    words = re.split(r"[-_ ]+", name.lower())
    return "".join(word for word in words if word not in _ADDED)
