"""The routes /v1/embeddings and /v1/rerank, which return vectors or scores of texts.

The first follows OpenAI's API, the second the one that Jina and Cohere share.
"""

import base64
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from ridgeline.engine.embedding_llm import (
    check_embeds,
    check_scores,
    pair_ids,
    prompt_text,
    relevance,
    text_ids,
    truncate_dimensions,
)
from ridgeline.engine.events import Event
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.worker.engine_messages import VectorInfo
from ridgeline.server.errors import ApiError, as_invalid, invalid
from ridgeline.server.event_loop import offload_if_long, slices
from ridgeline.server.in_flight import Generation
from ridgeline.server.routes.generation import new_id, run
from ridgeline.server.routes.long_response import EncodedList
from ridgeline.server.routes.served_model import ServedModel
from ridgeline.server.service import Service

EMBEDDINGS, RERANK = "/v1/embeddings", "/v1/rerank"
MAX_INPUTS = 2048
"""The most texts of an embedding request, as in OpenAI's API, and the most documents of a rerank request."""
_TOGETHER = 64  # texts of one request in the engine at a time, so that other requests get a share
_PART = 1 << 16  # characters tokenized at a time

Values = NDArray[np.float32]
_Given = TypeVar("_Given")


class EmbeddingFields(msgspec.Struct, kw_only=True, frozen=True):
    """The fields of a /v1/embeddings request."""

    model: str = ""
    input: Any = None
    """A text, a list of texts, token ids, or a list of lists of ids.

    It is checked in this module, whose error messages are better than msgspec's.
    """
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    prompt_name: str | None = None
    """The name of one of the model's prompts, as in Text Embeddings Inference."""
    add_special_tokens: bool = True


class RerankFields(msgspec.Struct, kw_only=True, frozen=True):
    """The fields of a /v1/rerank request."""

    model: str = ""
    query: str = ""
    documents: list[str | dict[str, Any]] = []
    """The documents to rank: texts, or objects with a `text` field."""
    top_n: Annotated[int, Meta(ge=1)] | None = None
    return_documents: bool = True


async def embeddings(fields: EmbeddingFields, model: ServedModel, service: Service) -> dict[str, object]:
    """Return the /v1/embeddings response, with one vector per input.

    Raises:
        ApiError: If the request is invalid or fails.
    """
    model.check_name(fields.model)
    info = _vectors(model, check_embeds, "input")
    embedding = model.texts.embedding
    _refused("dimensions", lambda: truncate_dimensions(embedding, np.zeros(info.width, np.float32), fields.dimensions))
    before = _refused("prompt_name", lambda: prompt_text(embedding, fields.prompt_name))
    inputs = _inputs(fields.input)
    prompts = await encoded(inputs, len, lambda each: _ids(each, model, info, before, fields.add_special_tokens))
    values = await _run(service, model, EMBEDDINGS, prompts)
    as_text, data = fields.encoding_format == "base64", EncodedList()
    async for part in slices(list(enumerate(values))):
        shortened = [(index, truncate_dimensions(embedding, vector, fields.dimensions)) for index, vector in part]
        data.add(
            [
                {"object": "embedding", "index": index, "embedding": _base64(vector) if as_text else vector.tolist()}
                for index, vector in shortened
            ]
        )
    return {
        "object": "list",
        "model": model.name,
        "data": data.json(),
        "usage": _usage(prompts),
    }


async def rerank(fields: RerankFields, model: ServedModel, service: Service) -> dict[str, object]:
    """Return the /v1/rerank response: documents sorted by their relevance to the query, the most relevant first.

    Raises:
        ApiError: If the request is invalid or fails.
    """
    model.check_name(fields.model)
    info = _vectors(model, check_scores, "model")
    texts = [_document(each) for each in fields.documents]
    if not fields.query:
        raise invalid("query: it is empty; give at least one character", "query", code="missing_field")
    _check_count(texts, "documents")

    prompts = await encoded(
        texts, lambda text: len(fields.query) + len(text), lambda text: _pair(fields.query, text, model, info)
    )
    scores = [relevance(info, values) for values in await _run(service, model, RERANK, prompts)]
    best = sorted(range(len(texts)), key=lambda index: -scores[index])[: fields.top_n]
    return {
        "id": new_id("rerank-"),
        "model": model.name,
        "results": [
            {"index": index, "relevance_score": scores[index]}
            | ({"document": {"text": texts[index]}} if fields.return_documents else {})
            for index in best
        ],
        "usage": _usage(prompts),
    }


async def _run(service: Service, model: ServedModel, route: str, prompts: Sequence[list[int]]) -> list[Values]:
    """Return the model's output vector for each prompt; run a limited number of prompts at a time.

    Raises:
        ApiError: If a prompt is rejected or fails.
    """
    found: list[Values] = []
    info = service.llm.info
    # All at once could exceed the server's queue.
    for part in parts(prompts, len, info.capacity, min(_TOGETHER, info.requests)):
        results: dict[int, Values] = {}

        def take(prompt: int, event: Event, results: dict[int, Values] = results) -> None:
            if event.hidden is not None:
                results[prompt] = event.hidden[0]

        arrived = time.perf_counter_ns()
        specs = [GenerationRequest(prompt, arrived=arrived) for prompt in part]
        await run(service, Generation(new_id("embd-"), model.name, route, specs), take)
        found += [results[index] for index in range(len(part))]
    return found


def parts(
    given: Sequence[_Given], size: Callable[[_Given], int], most: int, count: int = MAX_INPUTS
) -> Iterator[list[_Given]]:
    """Yield the items in groups of at most `count` items with a total size of at most `most`.

    An item that is larger than `most` is a group of its own.
    """
    part, held = list[_Given](), 0
    for each in given:
        if part and (len(part) == count or held + size(each) > most):
            yield part
            part, held = [], 0
        part.append(each)
        held += size(each)
    if part:
        yield part


async def encoded(
    given: Sequence[_Given], length: Callable[[_Given], int], ids: Callable[[_Given], list[int]]
) -> list[list[int]]:
    """Return the token ids of each item, and tokenize them in groups so that the event loop is not blocked.

    Many short texts would block it like one long text, and an invalid item ends the work before the remaining groups.

    Args:
        given: The items, such as texts.
        length: Returns the characters of an item.
        ids: Returns the token ids of an item; its errors are passed on.
    """
    found: list[list[int]] = []
    for part in parts(given, length, _PART):
        found += await offload_if_long(sum(map(length, part)), partial(list, map(ids, part)))
    return found


def _pair(query: str, document: str, model: ServedModel, info: VectorInfo) -> list[int]:
    """Return the token ids of a query and a document together.

    Raises:
        ApiError: If they cannot be encoded, or are too long.
    """
    ids = _refused("documents", lambda: pair_ids(model.texts, info, query, document, model.info.context))
    return _fitting(ids, model, "documents")


def _fitting(ids: list[int], model: ServedModel, param: str) -> list[int]:
    """Return the token ids unchanged, or raise ApiError if there are more than the model takes."""
    if len(ids) <= model.max_sequence_positions:
        return ids
    message = (
        f"{param}: a text has {len(ids)} tokens, but the model's context is {model.max_sequence_positions}: shorten it"
    )
    raise invalid(message, param, code="context_length_exceeded")


def _vectors(model: ServedModel, check: Callable[[VectorInfo | None], None], param: str) -> VectorInfo:
    """Return the description of the vectors that an embedding or rerank model outputs.

    Raises:
        ApiError: If the model does not have the kind of output that `check` requires.
    """
    with as_invalid(param, code="unsupported_model"):
        check(model.info.vectors)
    assert model.info.vectors is not None
    return model.info.vectors


def _refused(param: str, work: Callable[[], _Given]) -> _Given:
    """Return the result of `work`, and convert a ValueError into an ApiError that names the field."""
    try:
        return work()
    except ValueError as error:
        code = "context_length_exceeded" if "context is" in str(error) else "invalid_value"
        raise invalid(str(error), param, code=code) from None


def _inputs(given: Any) -> list[Any]:
    """Return the inputs of an embedding request as a list of texts or of lists of token ids.

    Raises:
        ApiError: If the inputs are malformed, empty or too many.
    """
    if isinstance(given, str):
        given = [given]
    if not isinstance(given, list) or not given:
        raise _malformed()
    inputs = [given] if type(given[0]) is int else given
    _check_count(inputs, "input")
    if not all(isinstance(each, str | list) for each in inputs):
        raise _malformed()
    return inputs


def _check_count(given: Sequence[object], param: str) -> None:
    if not given:
        raise invalid(f"{param}: it is empty: give at least one text", param, code="missing_field")
    if len(given) > MAX_INPUTS:
        raise invalid(f"{param}: the request has {len(given)} texts, but the limit is {MAX_INPUTS}: send fewer", param)


def _ids(given: str | list[Any], model: ServedModel, info: VectorInfo, before: str, add_special: bool) -> list[int]:
    """Return the token ids of one input, with the prompt `before` in front if it is a text.

    Raises:
        ApiError: If the input is malformed, empty, too long or out of vocabulary.
    """
    if isinstance(given, str) and given:
        ids = _refused(
            "input", lambda: text_ids(model.texts, given, model.info.context, before, add_special=add_special)
        )
        if not ids:
            raise invalid("input: a text has no tokens: give another text, or leave add_special_tokens out", "input")
    elif isinstance(given, list) and given and set(map(type, given)) == {int}:
        ids = given
        unknown = next((token for token in ids if not 0 <= token < info.vocabulary), None)
        if unknown is not None:
            raise invalid(
                f"input: token id {unknown} is out of vocabulary; the model has ids 0 to {info.vocabulary - 1}", "input"
            )
    else:
        raise _malformed()
    return _fitting(ids, model, "input")


def _document(given: str | dict[str, Any]) -> str:
    text = given.get("text") if isinstance(given, dict) else given
    if not isinstance(text, str) or not text:
        raise invalid('documents: each must be a non-empty string, or {"text": ...} with one', "documents")
    return text


def _malformed() -> ApiError:
    message = "input: give a string, a list of strings, token ids, or a list of lists of token ids, none of them empty"
    return invalid(message, "input")


def _base64(vector: Values) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")


def _usage(prompts: Sequence[Sequence[int]]) -> dict[str, int]:
    tokens = sum(map(len, prompts))
    return {"prompt_tokens": tokens, "total_tokens": tokens}
