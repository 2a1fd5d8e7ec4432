"""GenerationRequest: one record for a request, which nobody copies and which crosses processes whole."""

import ast
import asyncio
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import ridgeline
from engine.null_model import null_engine
from engine.scripted import GREEDY
from ridgeline.engine import LLM, AsyncLLM
from ridgeline.engine.encoder_features import EncoderFeatures
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.llm import TextEngine
from ridgeline.engine.params import LogitBias, SamplingParams
from ridgeline.engine.prompt_tokens import NamedPrompt
from ridgeline.engine.structured_output_params import StructuredOutputs
from ridgeline.engine.transfer.wire import Prefill, ToProducer
from ridgeline.engine.worker.engine_messages import AddRequest, ToEngine
from ridgeline.util.frames import MessageCodec

PACKAGE = Path(str(ridgeline.__file__)).parent
FIELDS = frozenset(GenerationRequest.__struct_fields__)
EVERY: dict[str, Any] = {
    "prompt": [3, 1, 2],
    "params": SamplingParams(temperature=0.5, logit_bias=LogitBias({7: -1.5}), stop=("END",), seed=-(2**63), n=3),
    "encoder": (5, 6, 7),
    "images": EncoderFeatures(b"\0" * 24, 3, 2),
    "adapter": "loud",
    "cache_salt": b"\0salt",
    "service_tier": "flex",
    "separate_reasoning": False,
    "arrived": 2**62,
}
"""A value for each field that is not its default."""


class Marked(GenerationRequest, frozen=True):
    """A request with a field that no code knows."""

    colour: str = ""


# -- nobody copies it --------------------------------------------------------------------------------------------------

SHARING = {
    ("server/routes/request_fields.py", "GenerationFields"): "a route's parser",
    ("server/routes/responses_to_chat.py", "ResponseFields"): "a route's parser",
    ("engine/step_plan.py", "PlanItem"): "an adapter's number, and what the encoder reads in one step",
    ("engine/worker/engine_messages.py", "SequenceState"): "the engine's own clock, and a number of tokens",
    ("server/images/image_service.py", "InFlightImageRequest"): "a request to draw, and a number of images",
}
"""Classes that have the names of two fields or more, and what these are there."""
MAKERS = {
    ("engine/llm.py", "LLM.stream"),
    ("engine/async_llm.py", "AsyncLLM.stream"),
    ("engine/async_llm.py", "AsyncLLM.generate"),
    ("engine/async_llm.py", "AsyncLLM._request"),
}
"""Functions with parameters of the names of three fields or more: those of the Python API, which make the record."""


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    """The classes of engine and server, with the path of their file in the package."""
    for room in ("engine", "server"):
        for path in sorted((PACKAGE / room).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            yield from (
                (path.relative_to(PACKAGE).as_posix(), node)
                for node in ast.walk(tree)
                if isinstance(node, ast.ClassDef)
            )


def attributes(node: ast.ClassDef) -> set[str]:
    """The fields that a class declares, and the attributes that it gives itself, without leading underscores."""
    declared = {
        each.target.id for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    given = {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and ast.unparse(each.value) == "self"
    }
    return {name.lstrip("_") for name in declared | given}


def test_no_other_class_of_engine_and_server_repeats_its_fields() -> None:
    sharing = {(file, node.name) for file, node in classes() if len(attributes(node) & FIELDS) > 1}
    assert sharing - {("engine/generation_request.py", "GenerationRequest")} == set(SHARING)


def test_those_on_its_way_hold_it_and_at_most_a_number_of_their_own() -> None:
    found = {(file, node.name): attributes(node) for file, node in classes()}
    for file, name, own in (
        ("server/in_flight.py", "InFlightRequest", set()),
        ("engine/async_llm.py", "_Caller", set()),
        ("engine/worker/engine_messages.py", "AddRequest", set()),
        ("engine/transfer/wire.py", "Prefill", set()),
        ("engine/request.py", "Request", {"adapter"}),  # its number in this engine
        ("server/replicas/engine_fleet.py", "_RoutedRequest", set()),
    ):
        assert "spec" in found[file, name], name
        assert found[file, name] & FIELDS == own, name


def test_only_the_python_api_takes_its_fields_one_by_one() -> None:
    taking = set()
    for file, node in classes():
        for each in node.body:
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                names = {argument.arg for argument in (*each.args.args, *each.args.kwonlyargs)}
                if len(names & FIELDS) > 2:
                    taking.add((file, f"{node.name}.{each.name}"))
    assert taking == MAKERS


def test_the_engine_holds_the_object_that_it_is_given() -> None:
    engine, spec = null_engine(), GenerationRequest([1, 2, 3], dataclasses.replace(GREEDY, n=3))
    group = engine.add(spec)
    assert [engine.requests[group + choice].spec is spec for choice in range(3)] == [True] * 3
    assert engine.requests[group].tokens.prompt is spec.prompt


def test_a_field_that_no_code_knows_reaches_the_engine(llm: LLM) -> None:
    """Both where the object goes on as it is and where the engine gets another: it knows no stop strings."""
    plain = Marked([5, 6], dataclasses.replace(GREEDY, max_tokens=2), colour="green")
    stopped = Marked([5, 6], SamplingParams(max_tokens=2, stop=("\0\0",)), colour="blue")
    seen: list[GenerationRequest] = []
    add = llm.engine.add
    llm.engine.add = lambda spec, **more: seen.append(spec) or add(spec, **more)  # type: ignore[method-assign, func-returns-value]

    async def use() -> None:
        async with AsyncLLM(llm.loaded) as server:
            for spec in (plain, stopped):
                ended = asyncio.get_running_loop().create_future()
                server.submit(spec, lambda event, ended=ended: event.finish and ended.set_result(event))  # type: ignore[misc, union-attr]
                await asyncio.wait_for(ended, 60)

    try:
        asyncio.run(use())
        texts = TextEngine(llm.loaded)
        texts.add(stopped)
        while llm.engine.has_work:
            texts.step()
    finally:
        del llm.engine.add  # type: ignore[method-assign]
    assert seen[0] is plain
    assert [(spec.colour, spec.params.stop) for spec in seen[1:]] == [("blue", ())] * 2  # type: ignore[attr-defined]
    assert stopped.params.stop == ("\0\0",)


# -- it crosses processes whole ----------------------------------------------------------------------------------------


def test_every_field_has_a_value_here_that_is_not_its_default() -> None:
    assert EVERY.keys() == FIELDS
    least = GenerationRequest([1])
    assert all(getattr(least, name) != value for name, value in EVERY.items())


@pytest.mark.parametrize("name", sorted(FIELDS))
def test_each_field_arrives_by_itself(name: str) -> None:
    spec = GenerationRequest(**{"prompt": [1], name: EVERY[name]})
    frames: MessageCodec[Any] = MessageCodec(ToEngine)
    (add,) = frames.feed(frames.encode(AddRequest(7, spec)))
    assert getattr(add.spec, name) == EVERY[name]
    assert type(getattr(add.spec, name)) is type(EVERY[name])
    assert add == AddRequest(7, spec)


@pytest.mark.parametrize("features", [False, True])
def test_all_fields_arrive_together_and_at_another_engine_too(features: bool) -> None:
    spec = GenerationRequest(
        **EVERY | ({"encoder": EncoderFeatures.of(np.ones((4, 2), np.float32))} if features else {})
    )
    for message, types in ((AddRequest(2**40, spec), ToEngine), (Prefill(3, 16, spec), ToProducer)):
        frames: MessageCodec[Any] = MessageCodec(types)
        assert frames.feed(frames.encode(message)) == [message]


def test_structured_outputs_and_logit_biases_arrive_as_what_they_are() -> None:
    params = SamplingParams(structured_outputs=StructuredOutputs(regex="a+"), logit_bias={3: 1.0})
    frames: MessageCodec[Any] = MessageCodec(ToEngine)
    (add,) = frames.feed(frames.encode(AddRequest(1, GenerationRequest([1], params))))
    assert add.spec.params == params
    assert isinstance(add.spec.params.logit_bias, LogitBias)


def test_a_field_that_has_its_default_takes_no_bytes() -> None:
    """Requests for vectors are many, short, and say nothing but their prompt."""
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(GenerationRequest([1, 2]))) == {"prompt": [1, 2]}


# -- what it may be ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ids", [[4, 5], (4, 5), np.array([4, 5]), range(4, 6), NamedPrompt(20, (1, 2), 16)])
def test_ids_may_come_in_any_sequence(ids: Any) -> None:
    spec = GenerationRequest(ids, encoder=ids)
    assert list(spec.prompt) == list(spec.encoder) == list(ids)
    assert isinstance(spec.encoder, tuple)
    assert {type(token) for token in (*spec.prompt, *spec.encoder)} == {int}


def test_a_prompt_of_ids_is_not_copied() -> None:
    for ids in ([4, 5], (4, 5), range(9), NamedPrompt(20, (1, 2), 16)):
        assert GenerationRequest(ids).prompt is ids


@pytest.mark.parametrize("wrong", ["ab", [1.5], None, 3, [[1]]])
def test_what_holds_no_ids_is_refused_in_one_line(wrong: Any) -> None:
    for fields in ({"prompt": wrong}, {"prompt": [1], "encoder": wrong}):
        with pytest.raises(ValueError, match=r"^the prompt is not a list of token ids: give integers$"):
            GenerationRequest(**fields)


def test_it_never_changes() -> None:
    with pytest.raises(AttributeError):
        GenerationRequest([1]).adapter = "loud"  # type: ignore[misc]


def test_requests_share_a_prefix_by_salt_and_adapter_together() -> None:
    both = [
        GenerationRequest([1], adapter=adapter, cache_salt=salt) for adapter in ("", "a", "b") for salt in (b"", b"s")
    ]
    found = [spec.cache_namespace for spec in both]
    assert found == [b"", b"s", b"a\0", b"a\0s", b"b\0", b"b\0s"]
