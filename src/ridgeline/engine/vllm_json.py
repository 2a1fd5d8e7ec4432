"""The options of vLLM whose value is a JSON object."""

import json
from typing import Any


def json_option(option: str, text: str, example: str) -> dict[str, Any]:
    """Return the JSON object that an option was given.

    Args:
        option: The option, for errors.
        text: The value of the option.
        example: A value that the option takes.

    Raises:
        ValueError: If the text is not a JSON object.
    """
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise ValueError(f"{option} is not a JSON object: write {example}")
    return values
