"""The format that a structured output must have, the way such an output can end early, and the cost of its grammars."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_CHOICES = 1024


@dataclass(frozen=True, slots=True)
class StructuredOutputs:
    """The format that a response must have; exactly one of the first five fields describes it.

    Raises:
        ValueError: If not exactly one is given, or it is of the wrong type. Whether it compiles, only the engine
            checks.
    """

    json: str | Mapping[str, Any] | None = None
    """The JSON schema of the response, as text or as a mapping, which becomes text."""
    json_object: bool = False
    """Whether the response must be a JSON object of any schema."""
    regex: str | None = None
    """A regular expression that the whole response must match; without look-around and back-references."""
    choice: tuple[str, ...] | None = None
    """The texts of which the response must be one."""
    grammar: str | None = None
    """A context-free grammar of the response, as llguidance reads it (its Lark dialect, or GBNF)."""
    after_reasoning: bool = True
    """Whether a reasoning section before the response is free, if the model writes any.

    If not, everything that is sampled must have the format.
    """

    def __post_init__(self) -> None:
        if isinstance(self.json, Mapping):
            object.__setattr__(self, "json", _as_json(self.json))
        for name in ("json", "regex", "grammar"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise ValueError(f"structured_outputs.{name} is a {type(value).__name__}: give a string")
        for name in ("json_object", "after_reasoning"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"structured_outputs.{name} is not a boolean: give True or False")
        if self.choice is not None:
            object.__setattr__(self, "choice", _checked_choice(self.choice))
        given = [name for name in ("json", "regex", "choice", "grammar") if getattr(self, name) is not None]
        given += ["json_object"] * self.json_object
        if len(given) != 1:
            found = f"has {' and '.join(given)}" if given else "is empty"
            raise ValueError(
                f"structured_outputs {found}; give exactly one of json, json_object, regex, choice, grammar"
            )


@dataclass(frozen=True, slots=True)
class DeadEnd:
    """The end of a structured output that no token can continue."""

    whole: bool
    """Whether the text is complete by its grammar."""
    reason: str | None = None
    """The reason why the structured output cannot be completed, in one line; None if it is complete."""


@dataclass(frozen=True, slots=True)
class GuideStats:
    """The cost of an engine's grammars so far: compilations, and bytes in the cache."""

    compiled: int = 0
    """The number of grammars compiled so far."""
    nbytes: int = 0
    """The bytes of compiled grammars in the cache."""


def _as_json(schema: Mapping[str, Any]) -> str:
    try:
        return json.dumps(schema, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        raise ValueError("structured_outputs.json has a value that JSON cannot represent: give a JSON schema") from None


def _checked_choice(choice: object) -> tuple[str, ...]:
    if not isinstance(choice, Sequence) or isinstance(choice, str) or not 1 <= len(choice) <= MAX_CHOICES:
        raise ValueError(f"structured_outputs.choice must be a list of 1 to {MAX_CHOICES} strings")
    if not all(isinstance(text, str) and text for text in choice):
        raise ValueError(
            "structured_outputs.choice has an entry that is not a non-empty string: give strings of at least one "
            "character"
        )
    return tuple(choice)
