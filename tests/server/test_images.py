"""/v1/images/generations: by OpenAI's client and by hand, beside what the pipeline itself draws; what is refused."""

import base64
import inspect
import io
import json
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import torch
from PIL import Image

from ridgeline.media.diffusion.diffusion_request import DiffusionRequest
from ridgeline.media.diffusion.geometry import Size
from ridgeline.media.diffusion.image_file import to_bytes
from ridgeline.media.diffusion.pipeline import Pipeline
from ridgeline.media.diffusion.pipeline_loader import load_pipeline
from ridgeline.server.routes.image_generation import ImageFields, preview_steps
from ridgeline.server.routes.request_fields import NEUTRAL, REFUSED
from ridgeline.server.server_settings import ServerSettings
from server.conftest import Running
from server.pictures import ROUTE, Drawing, Held, drawing, pixels
from server.wire import eventually
from support.pipelines import SIZES, z_image

PROMPT, NEGATIVE = "a naïve cat — 猫", "blurred"
EXTRA = {"negative_prompt": NEGATIVE, "num_inference_steps": 4, "guidance_scale": 2.0, "seed": 5}
QUICK = {"prompt": "a cat", "size": "64x64", "num_inference_steps": 1, "guidance_scale": 0.0, "seed": 1}


@pytest.fixture(scope="module")
def pipeline(z_image_folder: Path) -> Pipeline:
    return load_pipeline(str(z_image_folder), threads=1)


@pytest.fixture(scope="module")
def up(pipeline: Pipeline) -> Iterator[Drawing]:
    with drawing({"tiny": pipeline}) as up:
        yield up


@pytest.fixture
def client(up: Drawing) -> Iterator[openai.OpenAI]:
    with up.client() as client:
        yield client


def drawn(pipeline: Pipeline, request: DiffusionRequest) -> list[Any]:
    """What the pipeline itself makes of a request, as bytes."""
    return [to_bytes(each).numpy() for each in pipeline.draw(request)]


# -- what is drawn ----------------------------------------------------------------------------------------------------


def test_openais_client_gets_what_the_pipeline_draws(client: openai.OpenAI, up: Drawing, pipeline: Pipeline) -> None:
    """Two pictures, bit for bit, with what they were drawn from in their files."""
    answer = client.images.generate(prompt=PROMPT, model="tiny", n=2, size="64x64", extra_body=EXTRA)
    expected = drawn(pipeline, DiffusionRequest(PROMPT, NEGATIVE, Size(64, 64), 4, 2.0, 5, 2))
    assert answer.data is not None
    for image, wanted in zip(answer.data, expected, strict=True):
        assert image.b64_json is not None
        assert np.array_equal(pixels(image.b64_json), wanted)
    assert [image.seed for image in answer.data] == [5, 6]  # type: ignore[attr-defined]
    assert (answer.output_format, answer.size, answer.background) == ("png", "64x64", "opaque")
    texts = len(pipeline.encoder.ids(PROMPT)) + len(pipeline.encoder.ids(NEGATIVE))
    assert answer.usage is not None
    usage = answer.usage.model_dump()
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (texts, 128, texts + 128)
    assert usage["input_tokens_details"] == {"text_tokens": texts, "image_tokens": 0}
    assert 0 < answer.inference_time_s < 60  # type: ignore[attr-defined]
    assert 0 < answer.predicted_time_s < 60  # type: ignore[attr-defined]
    low, high = answer.predicted_interval_s  # type: ignore[attr-defined]
    assert low < answer.predicted_time_s < high  # type: ignore[attr-defined]


def test_what_a_request_leaves_open_is_the_models(up: Drawing, pipeline: Pipeline) -> None:
    """Size, guidance and a seed that is said, with which the picture comes again; `auto` and null leave it open."""
    answer = up.draw(prompt="a cat", size="auto", num_inference_steps=1, quality="auto", negative_prompt=None)
    seed = answer["data"][0]["seed"]
    (wanted,) = drawn(pipeline, DiffusionRequest("a cat", steps=1, seed=seed))
    assert answer["size"] == SIZES[0]
    assert np.array_equal(pixels(answer["data"][0]["b64_json"]), wanted)


def test_formats(up: Drawing, pipeline: Pipeline) -> None:
    """PNG and WebP lose nothing; with a compression WebP does, as JPEG, and smaller is smaller."""
    (wanted,) = drawn(pipeline, DiffusionRequest("a cat", None, Size(64, 64), 1, 0.0, 1))
    for form in ("png", "webp"):
        answer = up.draw(**QUICK, output_format=form)
        assert answer["output_format"] == form
        assert np.array_equal(pixels(answer["data"][0]["b64_json"]), wanted), form
    for form in ("webp", "jpeg"):
        small, large = (
            up.draw(**QUICK, output_format=form, output_compression=quality)["data"][0]["b64_json"]
            for quality in (5, 95)
        )
        assert len(small) < len(large), form
        assert np.abs(pixels(large).astype(int) - wanted).mean() < np.abs(pixels(small).astype(int) - wanted).mean()
    with Image.open(io.BytesIO(base64.b64decode(large))) as opened:
        assert opened.format == "JPEG"


def test_a_picture_says_what_it_was_drawn_from(up: Drawing) -> None:
    answer = up.draw(**QUICK, n=2)
    with Image.open(io.BytesIO(base64.b64decode(answer["data"][1]["b64_json"]))) as opened:
        parameters = json.loads(opened.info["parameters"])
    assert (parameters["prompt"], parameters["seed"], parameters["steps"]) == ("a cat", 2, 1)


def test_previews_are_spread_evenly() -> None:
    assert preview_steps(20, 3) == {5, 10, 15}
    assert preview_steps(50, 1) == {25}
    assert preview_steps(4, 0) == frozenset()
    assert preview_steps(1, 3) == frozenset()
    for steps in range(1, 30):
        for previews in range(4):
            found = preview_steps(steps, previews)
            assert found <= set(range(1, steps))
            assert len(found) <= previews
            assert len(found) == previews or steps <= 2 * previews


def test_openais_client_streams(client: openai.OpenAI, pipeline: Pipeline) -> None:
    """Partial images in order, each the guess of its step; the last event is the picture, and previews change nothing
    of it."""
    stream = client.images.generate(
        prompt=PROMPT, model="tiny", size="64x64", stream=True, partial_images=3, extra_body=EXTRA
    )
    events = list(stream)
    assert [event.type for event in events] == ["image_generation.partial_image"] * 3 + ["image_generation.completed"]
    plan = pipeline.plan(DiffusionRequest(PROMPT, NEGATIVE, Size(64, 64), 4, 2.0, 5))
    steps = list(pipeline.denoise(plan, pipeline.encode(plan)))
    for index, event in enumerate(events[:3]):
        assert event.type == "image_generation.partial_image"
        assert (event.partial_image_index, event.size, event.output_format) == (index, "64x64", "png")
        assert np.array_equal(
            pixels(event.b64_json), to_bytes(pipeline.decode(steps[index].predicted_latents)[0]).numpy()
        )
    last = events[-1]
    assert last.type == "image_generation.completed"
    assert np.array_equal(pixels(last.b64_json), to_bytes(pipeline.decode(steps[-1].latents)[0]).numpy())
    assert last.usage.output_tokens == 64


def test_events_are_named_as_openai_names_them(up: Drawing) -> None:
    """By hand: a type before each frame, nothing after the last."""
    reply = up.post(ROUTE, {**QUICK, "num_inference_steps": 2, "stream": True, "partial_images": 1})
    assert reply.headers["content-type"].startswith("text/event-stream")
    frames = reply.data.decode().split("\n\n")
    assert frames[-1] == ""
    said = [frame.split("\ndata: ") for frame in frames[:-1]]
    assert [name for name, _ in said] == [
        "event: image_generation.partial_image",
        "event: image_generation.completed",
    ]
    assert [json.loads(data)["type"] for _, data in said] == [name.removeprefix("event: ") for name, _ in said]
    completed = json.loads(said[-1][1])
    assert completed["seed"] == 1
    assert completed["inference_time_s"] > 0


def test_progress_comes_after_every_stride_for_who_asks(up: Drawing, pipeline: Pipeline) -> None:
    """And changes nothing of the picture."""
    asked = {**QUICK, "num_inference_steps": 3, "stream": True}
    frames = up.post(ROUTE, {**asked, "progress": True, "partial_images": 1}).data.decode().split("\n\n")[:-1]
    events = [json.loads(frame.partition("\ndata: ")[2]) for frame in frames]
    told = [event for event in events if event["type"] == "image_generation.progress"]
    assert [(each["stage"], each["step"]) for each in told] == [
        *(("encode", 0), ("denoise", 1), ("denoise", 2), ("denoise", 3), ("decode", 3))
    ]
    schedule = pipeline.plan(DiffusionRequest("a cat", size=Size(64, 64), steps=3)).schedule
    assert told[0]["noise"] == [schedule.time(step) for step in range(3)]
    assert all("noise" not in each for each in told[1:])
    left = [each["predicted_time_left_s"] for each in told]
    assert left == sorted(left, reverse=True)
    assert (left[-1], events[-1]["type"]) == (0, "image_generation.completed")
    assert told[-1]["inference_time_s"] == events[-1]["inference_time_s"]
    alone = json.loads(up.post(ROUTE, asked).data.decode().partition("\ndata: ")[2])
    assert alone["b64_json"] == events[-1]["b64_json"]


def test_every_field_of_openais_method_is_known() -> None:
    """But those of moving and drawn (SVG) pictures, which are refused as any that nobody knows."""
    theirs = set(inspect.signature(openai.resources.Images.generate).parameters)
    theirs -= {"extra_headers", "extra_query", "extra_body", "timeout", "self"}
    theirs -= {"complexity", "frame_count", "frame_duration_ms", "svg"}
    assert {"prompt", "n", "size", "partial_images", "output_compression", "background", "style", "user"} <= theirs
    assert theirs <= {*ImageFields.__struct_fields__, *NEUTRAL, *REFUSED}, theirs


# -- several at a time ------------------------------------------------------------------------------------------------


def together(up: Drawing, pipeline: Pipeline, asked: Sequence[Mapping[str, Any]]) -> tuple[list[Any], list[int]]:
    """The answers to two requests that are there before the first one's first step ends, and the width of the latents
    of every call of the denoiser."""
    answers: dict[int, Any] = {}

    def ask(which: int) -> None:
        answers[which] = up.draw(**asked[which])

    with Held(pipeline) as held:
        threads = [threading.Thread(target=ask, args=(which,)) for which in range(2)]
        threads[0].start()
        assert held.begun.wait(30)
        threads[1].start()
        assert eventually(lambda: len(up.service.live) == 2)
        held.go.set()
        for thread in threads:
            thread.join(60)
        calls = held.calls
    up.idle()
    return [answers[which] for which in range(2)], calls


def switches(calls: Sequence[int]) -> int:
    """How often the one request is stepped after the other, from when both are."""
    both = calls[calls.index(next(call for call in calls if call != calls[0])) :]
    return sum(one != other for one, other in pairwise(both))


def test_requests_take_turns_and_each_is_as_if_alone(up: Drawing, pipeline: Pipeline) -> None:
    """Two of different sizes: steps alternate as far as the price has it, and no bit depends on the other."""
    asked = [
        {"prompt": "a cat", "size": "64x64", "num_inference_steps": 6, "guidance_scale": 0.0, "seed": 1},
        {"prompt": "a dog", "size": "96x64", "num_inference_steps": 6, "guidance_scale": 0.0, "seed": 2},
    ]
    answers, calls = together(up, pipeline, asked)
    assert sorted(calls) == [16] * 6 + [24] * 6
    assert switches(calls) >= 6, calls
    for which, each in enumerate(asked):
        size = Size.parse(str(each["size"]))
        (wanted,) = drawn(pipeline, DiffusionRequest(str(each["prompt"]), None, size, 6, 0.0, which + 1))
        assert np.array_equal(pixels(answers[which]["data"][0]["b64_json"]), wanted)


def test_a_step_cache_is_of_its_request_alone(up: Drawing, pipeline: Pipeline) -> None:
    """Beside one without, and beside one with another threshold: each is what it is alone, bit for bit, and says how
    many passes it skipped."""
    guided = {"prompt": "a cat", "num_inference_steps": 6, "guidance_scale": 2.0, "seed": 1}
    every, some = 1e9, 1.45
    sizes = "64x64", "96x64"
    for thresholds in ((every, None), (some, every)):
        asked = [
            guided | {"size": size} | ({} if threshold is None else {"step_cache": threshold})
            for size, threshold in zip(sizes, thresholds, strict=True)
        ]
        answers, calls = together(up, pipeline, asked)
        assert switches(calls) >= 3, calls
        for answer, size, threshold in zip(answers, sizes, thresholds, strict=True):
            plain = DiffusionRequest("a cat", None, Size.parse(size), 6, 2.0, 1)
            asked_alone = replace(plain, step_cache=threshold)
            plan = pipeline.plan(asked_alone)
            skipped = sum(step.skipped for step in pipeline.denoise(plan, pipeline.encode(plan)))
            assert answer.get("passes_skipped", 0) == skipped
            assert skipped == {None: 0, every: 10}.get(threshold, skipped)
            picture = pixels(answer["data"][0]["b64_json"])
            assert np.array_equal(picture, drawn(pipeline, asked_alone)[0])
            assert np.array_equal(picture, drawn(pipeline, plain)[0]) == (skipped == 0)


def test_what_a_step_cache_keeps_is_bounded(pipeline: Pipeline) -> None:
    """With the files: alone it is a 400 that names the field, beside others a 429."""
    each, cached = (64 * 64 * 3 + (64 << 10)) * 4 // 3, {**QUICK, "step_cache": 0.1}
    kept = pipeline.step_cache_bytes(
        pipeline.plan(DiffusionRequest("a cat", None, Size(64, 64), 1, 0.0, 1, step_cache=0.1))
    )
    with drawing({"tiny": pipeline}, ServerSettings(models=("tiny",), image_bytes=each + kept - 1)) as up:
        error = up.refusal(cached)
        assert (error["param"], "leave step_cache out, or request a smaller size" in error["message"]) == (
            "step_cache",
            True,
        )
        assert up.draw(**QUICK)["data"]
    settings = ServerSettings(models=("tiny",), image_bytes=2 * each + 2 * kept - 1)
    with drawing({"tiny": pipeline}, settings) as up, Held(pipeline) as held:
        first = threading.Thread(target=lambda: up.draw(**cached))
        first.start()
        assert held.begun.wait(30)
        assert up.refusal(cached, 429)["code"] == "queue_pictures"
        held.go.set()
        first.join(30)
        up.idle()
        assert up.draw(**cached)["passes_skipped"] == 0


@pytest.mark.parametrize("stream", [False, True])
def test_who_leaves_ends_the_request_between_two_steps(up: Drawing, pipeline: Pipeline, stream: bool) -> None:
    """No further pass of the denoiser; the next request is as if it had not been."""
    body = json.dumps({**QUICK, "num_inference_steps": 30, "stream": stream}).encode()
    with Held(pipeline) as held:
        with socket.create_connection(("127.0.0.1", up.port)) as connection:
            head = f"POST {ROUTE} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
            assert held.begun.wait(30)
        up.idle()
        held.go.set()
        (wanted,) = drawn(pipeline, DiffusionRequest("a cat", None, Size(64, 64), 1, 0.0, 1))
        assert np.array_equal(pixels(up.draw(**QUICK)["data"][0]["b64_json"]), wanted)
        assert len(held.calls) == 3, "one of the request that was left, one of ours, one of the next"


def test_a_request_that_fails_leaves_the_others_alone(
    up: Drawing, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Latents that are no numbers, and memory that is refused: an error of the server's, without its words."""
    denoise = Pipeline.denoise

    def broken(self: Pipeline, plan: Any, texts: Any) -> Any:
        if plan.seed == 666:
            raise MemoryError("of a secret")
        for step in denoise(self, plan, texts):
            if plan.seed == 667:
                step.latents.fill_(torch.nan)
            yield step

    monkeypatch.setattr(Pipeline, "denoise", broken)
    error = up.refusal({**QUICK, "seed": 666}, 503)
    assert (error["code"], "secret" in error["message"]) == ("out_of_memory", False)
    error = up.refusal({**QUICK, "seed": 667}, 500)
    assert (error["code"], error["type"]) == ("failed", "server_error")
    assert up.draw(**QUICK)["data"]
    up.idle()


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "param", "code", "says"),
    [
        ({"prompt": None}, "prompt", "missing_field", "describe what to generate"),
        ({"prompt": 5}, "prompt", "invalid_value", "prompt is 5; give a string"),
        ({"prompt": "x" * 2000}, "prompt", "invalid_value", "prompt"),
        (
            {"size": "1024x1024"},
            "size",
            "invalid_value",
            "this model cannot make size 1024x1024; give one of 96x64, 64x64, 64x96",
        ),
        ({"size": "big"}, "size", "invalid_value", "write width x height in pixels"),
        ({"size": "64x"}, "size", "invalid_value", "write width x height in pixels"),
        ({"size": 64}, "size", "invalid_value", "size is 64; give a string"),
        ({"n": 0}, "n", "invalid_value", "n is 0; give a whole number of at least 1"),
        ({"n": 10**4}, "n", "invalid_value", "the limit is 8, but the request has 10000"),
        ({"n": "2"}, "n", "invalid_value", "n is a string; give a whole number"),
        (
            {"num_inference_steps": 0},
            "num_inference_steps",
            "invalid_value",
            "the number of steps is 0; this model takes 1 to 999",
        ),
        ({"num_inference_steps": 10**6}, "num_inference_steps", "invalid_value", "; this model takes 1 to 999"),
        ({"num_inference_steps": 10**30}, "num_inference_steps", "invalid_value", "; this model takes 1 to 999"),
        (
            {"num_inference_steps": 2.5},
            "num_inference_steps",
            "invalid_value",
            "num_inference_steps is 2.5; give a whole number",
        ),
        ({"guidance_scale": -1}, "guidance_scale", "invalid_value", "guidance"),
        ({"guidance_scale": 1e9}, "guidance_scale", "invalid_value", "guidance"),
        ({"guidance_scale": "high"}, "guidance_scale", "invalid_value", "guidance_scale is a string; give a number"),
        (
            {"negative_prompt": "x" * 2000, "guidance_scale": 3.0},
            *("negative_prompt", "invalid_value", "negative prompt"),
        ),
        (
            {"negative_prompt": "blurred"},
            "negative_prompt",
            "invalid_value",
            "the negative prompt would have no effect",
        ),
        ({"step_cache": -0.1}, "step_cache", "invalid_value", "0 or more, like 0.1"),
        ({"step_cache": True}, "step_cache", "invalid_value", "step_cache is true; give a number"),
        ({"enable_teacache": True}, "enable_teacache", "unknown_field", "unknown field"),
        ({"seed": -1}, "seed", "invalid_value", "seed is -1; it must be an integer from 0 to "),
        ({"seed": 2**63 - 1}, "seed", "invalid_value", "seed"),
        ({"seed": 2**80}, "seed", "invalid_value", "seed"),
        ({"response_format": "url"}, "response_format", "unsupported_field", "the server stores no files"),
        ({"output_format": "gif"}, "output_format", "invalid_value", "output_format is 'gif'; give "),
        ({"output_compression": 50}, "output_compression", "invalid_value", "png is lossless"),
        (
            {"output_compression": 101, "output_format": "jpeg"},
            "output_compression",
            "invalid_value",
            "output_compression is 101; give a whole number of at most 100",
        ),
        ({"partial_images": 2}, "partial_images", "invalid_value", "they are sent only in a stream"),
        ({"partial_images": 4, "stream": True}, "partial_images", "invalid_value", "a whole number of at most 3"),
        ({"progress": True}, "progress", "invalid_value", "it is sent only in a stream"),
        ({"stream": True, "n": 2}, "n", "invalid_value", "a stream can have only one image"),
        ({"background": "transparent"}, "background", "unsupported_field", "no transparency"),
        ({"quality": "hd"}, "quality", "unsupported_field", "num_inference_steps"),
        ({"style": "vivid"}, "style", "unsupported_field", "describe the style in the prompt"),
        ({"moderation": "strict"}, "moderation", "unsupported_field", "the server moderates nothing"),
        ({"steps": 4}, "steps", "unknown_field", "unknown field 'steps'"),
        ({"true_cfg_scale": 4.0}, "true_cfg_scale", "unknown_field", "unknown field"),
        ({"temperature": 1.0}, "temperature", "unknown_field", "unknown field"),
        ({"image": "x"}, "image", "unsupported_field", "not supported here"),
    ],
)
def test_bad_fields(up: Drawing, more: Any, param: str | None, code: str, says: str) -> None:
    error = up.refusal({**QUICK, **more})
    assert (error["param"], error["code"], error["type"]) == (param, code, "invalid_request_error"), error
    assert says in error["message"]
    assert "\n" not in error["message"]
    assert not up.service.live


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"guidance_scale": NaN}', b'{"seed": 1e999}', b"\xff"])
def test_bodies_that_are_no_objects(up: Drawing, body: bytes) -> None:
    assert up.refusal(body)["code"] == "invalid_json"


@pytest.mark.parametrize("value", ["NaN", "-Infinity"])
def test_a_guidance_that_json_does_not_have_is_named(up: Drawing, value: str) -> None:
    error = up.refusal(b'{"prompt": "a cat", "guidance_scale": %b}' % value.encode())
    assert (error["param"], error["code"]) == ("guidance_scale", "invalid_json")
    assert error["message"] == f"guidance_scale: {value} is not a JSON number: give a finite number"


def test_a_model_of_another_kind_says_what_to_ask(up: Drawing, server: Running) -> None:
    """Text of one that draws, pictures of one that writes; a name that nothing has."""
    for where, route in (
        *((up, route) for route in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/tokenize")),
        (up, "/v1/audio/transcriptions"),
        (server, ROUTE),
    ):
        reply = where.post(route, {"model": "tiny"})
        assert (reply.status, reply.json()["error"]["code"]) == (400, "unsupported_model"), route
    said = f"the model generates images, not text: use {ROUTE}"  # and not where clips are asked
    assert up.post("/v1/completions", {}).json()["error"]["message"] == said
    assert "use /v1/chat/completions" in server.post(ROUTE, {}).json()["error"]["message"]
    assert up.refusal({**QUICK, "model": "other"}, 404)["code"] == "model_not_found"
    assert up.get("/v1/trace/img_1").status == 404
    assert up.get(ROUTE).status == 405


# -- limits -----------------------------------------------------------------------------------------------------------


def test_the_queue_is_bounded(pipeline: Pipeline) -> None:
    settings = ServerSettings(models=("tiny",), queued_requests=1)
    with drawing({"tiny": pipeline}, settings) as up, Held(pipeline) as held:
        first = threading.Thread(target=lambda: up.draw(**QUICK))
        first.start()
        assert held.begun.wait(30)
        reply = up.post(ROUTE, QUICK)
        assert (reply.status, reply.json()["error"]["code"]) == (429, "queue_full")
        assert 1 <= int(reply.headers["retry-after"]) <= 60
        held.go.set()
        first.join(30)
        up.idle()
        assert up.draw(**QUICK)["data"]


def test_files_are_bounded_in_bytes(pipeline: Pipeline) -> None:
    """n x size: what no answer may hold is a 400, what the others' leave no room for a 429."""
    each = (64 * 64 * 3 + (64 << 10)) * 4 // 3
    settings = ServerSettings(models=("tiny",), image_bytes=3 * each)
    with drawing({"tiny": pipeline}, settings) as up, Held(pipeline) as held:
        error = up.refusal({**QUICK, "n": 4})
        assert (error["param"], "request fewer images at once" in error["message"]) == ("n", True)
        first = threading.Thread(target=lambda: up.draw(**QUICK, n=2))
        first.start()
        assert held.begun.wait(30)
        assert up.refusal({**QUICK, "n": 2}, 429)["code"] == "queue_pictures"
        held.go.set()
        first.join(30)
        assert len(up.draw(**QUICK, n=3)["data"]) == 3


def test_what_does_not_fit_into_memory_is_refused_before_it_runs(pipeline: Pipeline) -> None:
    with drawing({"tiny": pipeline}, room=1000.0) as up, Held(pipeline) as held:
        error = up.refusal(QUICK)
        assert (error["param"], error["code"]) == ("size", "too_large")
        assert "smaller size" in error["message"]
        assert not held.calls


def test_a_first_stride_that_takes_long_is_no_waiting(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    with drawing({"tiny": pipeline}) as up:
        drawer, told, answers = up.service.engine, threading.Event(), list[Any]()
        stride = drawer._run_work_unit

        def slow(run: Any) -> Any:
            assert told.wait(30)
            return stride(run)

        assert up.draw(**QUICK)["data"], "its price is known"
        monkeypatch.setattr(drawer, "_run_work_unit", slow)
        up.service.deadlines.queue = 0.3
        first = threading.Thread(target=lambda: answers.append(up.draw(**QUICK)))
        first.start()
        assert eventually(lambda: any(live.begun for live in up.service.live.values()))
        assert up.refusal(QUICK, 503)["code"] == "queue_timeout", "who waits behind it does wait"
        told.set()
        first.join(30)
        assert answers[0]["data"]


def test_limits_of_time(pipeline: Pipeline) -> None:
    """Until the first step, and in all."""
    with drawing({"tiny": pipeline}) as up, Held(pipeline) as held:
        first = threading.Thread(target=lambda: up.draw(**QUICK))
        first.start()
        assert held.begun.wait(30)
        up.service.deadlines.queue = 0.05
        assert up.refusal(QUICK, 503)["code"] == "queue_timeout"
        up.service.deadlines.queue, up.service.deadlines.total = 600.0, 0.05
        reply = up.post(ROUTE, QUICK)
        assert (reply.status, reply.json()["error"]["code"]) == (504, "total_timeout")
        assert reply.headers["x-should-retry"] == "false"
        held.go.set()
        first.join(30)
        up.idle()
        assert len(held.calls) == 1, "of those that were given up nothing ran"


# -- several pipelines ------------------------------------------------------------------------------------------------


def test_several_pipelines(pipeline: Pipeline, tmp_path: Path) -> None:
    """Each by its name, and a request says which."""
    z_image(tmp_path, pixels=1)
    grey = load_pipeline(str(tmp_path), threads=1)
    with drawing({"colour": pipeline, "grey": grey}, ServerSettings(models=("colour",))) as up:
        error = up.refusal(QUICK)
        assert (error["param"], error["code"]) == ("model", "missing_field")
        assert "colour, grey" in error["message"]
        assert [each["id"] for each in up.get("/v1/models").json()["data"]] == ["colour", "grey"]
        for name, own, shape in (("colour", pipeline, (64, 64, 3)), ("grey", grey, (64, 64))):
            answer = up.draw(**QUICK, model=name)
            found = pixels(answer["data"][0]["b64_json"])
            (wanted,) = drawn(own, DiffusionRequest("a cat", None, Size(64, 64), 1, 0.0, 1))
            assert found.shape == shape
            assert answer["model"] == name
            assert np.array_equal(found, wanted.reshape(shape))


def test_the_card_of_a_pipeline(up: Drawing) -> None:
    (card,) = up.get("/v1/models").json()["data"]
    assert card == up.get("/v1/models/tiny").json()
    assert (card["id"], card["sizes"], card["num_inference_steps"]) == ("tiny", list(SIZES), 50)
    assert card["limits"]["picture_bytes"] == 256 << 20
    assert up.get("/v1/models/other").status == 404
    assert ROUTE in up.get("/version").json()["routes"]
    assert up.get("/health").json() == {"status": "ready"}
