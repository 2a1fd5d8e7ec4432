"""The prompts of /v1/completions: a text, a list of texts, token ids, or a list of lists of them."""

import asyncio
from typing import Any

from ridgeline.server.api.model import ServedModel
from ridgeline.server.errors import ApiError, invalid
from ridgeline.server.settings import ServerSettings


async def read_prompts(
    prompt: Any, model: ServedModel, settings: ServerSettings, *, add_special: bool = True
) -> list[list[int]]:
    """Return the token ids of each prompt. Raises ApiError.

    add_special: Whether the tokenizer's own tokens (BOS) are added to texts. Ids stay as they are.
    """
    prompts = _each(prompt)
    if len(prompts) > settings.prompts:
        raise invalid(f"prompt: at most {settings.prompts} are served at once, there are {len(prompts)}", "prompt")
    among = sum(len(one) for one in prompts if isinstance(one, str))
    return list(await asyncio.gather(*(_ids(one, model, among, add_special) for one in prompts)))


def _each(prompt: Any) -> list[Any]:
    """The prompts one by one; a list of ids is one of them."""
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list):
        raise _malformed() if prompt is not None else _empty()
    if not prompt:
        raise _empty()
    return [prompt] if isinstance(prompt[0], int) else prompt


async def _ids(prompt: Any, model: ServedModel, among: int, add_special: bool) -> list[int]:
    """Return the ids of a prompt. among: characters of all. Raises ApiError."""
    if isinstance(prompt, str):
        ids = await model.encode(prompt, add_special=add_special, among=among) if prompt else []
    elif isinstance(prompt, list) and set(map(type, prompt)) <= {int}:
        ids = prompt
    else:
        raise _malformed()
    if not ids:
        raise _empty()
    model.check_ids(ids, "prompt")
    return ids


def _malformed() -> ApiError:
    return invalid("prompt: give a text, a list of texts, token ids, or a list of lists of token ids", "prompt")


def _empty() -> ApiError:
    return invalid("prompt: it is empty; give at least one character or one token id", "prompt", code="missing_field")
