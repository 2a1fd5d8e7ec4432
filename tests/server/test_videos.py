"""/v1/videos: by OpenAI's client and by hand, beside what the pipeline itself draws; what becomes of jobs, and what is
refused."""

import errno
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from ridgeline.media.diffusion.diffusion_request import DiffusionRequest
from ridgeline.media.diffusion.geometry import Size
from ridgeline.media.diffusion.pipeline import Pipeline
from ridgeline.media.diffusion.pipeline_loader import load_pipeline
from ridgeline.media.diffusion.video_file import write_video
from ridgeline.server.images import video_folder, video_routes
from ridgeline.server.server_settings import ServerSettings
from server.conftest import Running
from server.pictures import ROUTE as IMAGES
from server.pictures import Drawing, Held, drawing
from server.test_pictures_lifecycle import Up, lives, served
from server.wire import eventually
from support.pipelines import CLIP_SIZES, wan, wan_of_pictures

ROUTE = "/v1/videos"
PROMPT, NEGATIVE = "a naïve cat — 猫 runs", "blurred"
EXTRA = {"num_frames": 9, "negative_prompt": NEGATIVE, "num_inference_steps": 3, "guidance_scale": 2.0, "seed": 5}
QUICK = {
    "prompt": "a cat",
    "size": "64x32",
    "num_inference_steps": 1,
    "guidance_scale": 0.0,
    "seed": 1,
    "num_frames": 5,
    "output_format": "gif",
}
LONG = {**QUICK, "num_inference_steps": 40}

pytestmark = pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("wan")
    wan(path)
    return path


@pytest.fixture(scope="module")
def pipeline(folder: Path) -> Pipeline:
    return load_pipeline(str(folder), threads=1)


@pytest.fixture(scope="module")
def pictures(z_image_folder: Path) -> Pipeline:
    return load_pipeline(str(z_image_folder), threads=1)


@pytest.fixture(scope="module")
def up(pipeline: Pipeline) -> Iterator[Drawing]:
    with drawing({"tiny": pipeline}) as up:
        yield up


@pytest.fixture
def client(up: Drawing) -> Iterator[openai.OpenAI]:
    with up.client() as client:
        yield client


def begun(up: Drawing, **fields: Any) -> Any:
    """A job that was taken."""
    reply = up.post(ROUTE, fields)
    assert reply.status == 200, reply.data
    return reply.json()


def looked(up: Drawing, id: str) -> Any:
    return up.get(f"{ROUTE}/{id}").json()


def ended(up: Drawing, id: str) -> Any:
    """A job when it is over."""
    assert eventually(lambda: looked(up, id)["status"] in ("completed", "failed"), 30)
    return looked(up, id)


def refusal(up: Drawing, method: str, path: str, status: int, body: Any = None) -> Any:
    reply = up.request(method, path, body)
    assert reply.status == status, reply.data
    assert "\n" not in reply.json()["error"]["message"]
    return reply.json()["error"]


def file_of(pipeline: Pipeline, request: DiffusionRequest, format_: str, fps: float) -> bytes:
    """What the pipeline itself makes of a request."""
    out, parameters = BytesIO(), pipeline.parameters(pipeline.plan(request), 0)
    write_video(out, [pipeline.draw(request)[0]], format_, fps, {**parameters, "fps": fps})
    return out.getvalue()


QUICK_REQUEST = DiffusionRequest("a cat", None, Size(64, 32), 1, 0.0, 1, frames=5)


# -- a job from its beginning to its file ------------------------------------------------------------------------------


def test_a_step_cache(up: Drawing, pipeline: Pipeline) -> None:
    """Of a job in a form and in JSON: the file is the pipeline's with the same threshold; the job says what it
    skipped."""
    asked = {**QUICK, "num_inference_steps": 4, "step_cache": 1e9}
    wanted = file_of(pipeline, replace(QUICK_REQUEST, steps=4, step_cache=1e9), "GIF", 16.0)
    for body, headers in ((asked, {}), (form_of(asked), FORM)):
        job = ended(up, up.post(ROUTE, body, headers).json()["id"])
        assert (job["step_cache"], job["passes_skipped"]) == (1e9, 3)
        assert up.get(f"{ROUTE}/{job['id']}/content").data == wanted
    assert "step_cache" not in ended(up, up.post(ROUTE, QUICK).json()["id"])


def test_openais_client_gets_what_the_pipeline_draws(client: openai.OpenAI, pipeline: Pipeline) -> None:
    """It asks in a form, looks until the clip is there and fetches MP4: to the bit that of the pipeline's frames."""
    job = client.videos.create(prompt=PROMPT, model="tiny", size="64x32", extra_body=EXTRA)  # type: ignore[arg-type]
    assert (job.object, job.prompt, job.model, job.completed_at) == ("video", PROMPT, "tiny", None)
    assert job.status in ("queued", "in_progress")
    before = time.time()
    job = client.videos.poll(job.id)
    assert time.time() - before < 10, "it is told how long to wait"
    assert (job.status, job.progress, job.size, job.error) == ("completed", 100, "64x32", None)
    assert job.completed_at is not None
    assert job.expires_at is not None
    assert 3595 <= job.expires_at - job.completed_at <= 3601
    said = job.model_dump()
    assert {name: said[name] for name in EXTRA} == EXTRA
    assert (said["fps"], said["output_format"], float(job.seconds)) == (16.0, "mp4", 0.5625)
    assert min(said["inference_time_s"], said["predicted_time_s"]) > said["predicted_time_left_s"] == 0
    low, high = said["predicted_interval_s"]
    assert low < said["predicted_time_s"] < high
    content = client.videos.download_content(job.id)
    assert content.response.headers["content-type"] == "video/mp4"
    assert len(content.content) == said["bytes"]
    assert content.content == file_of(
        pipeline, DiffusionRequest(PROMPT, NEGATIVE, Size(64, 32), 3, 2.0, 5, frames=9), "MP4", 16.0
    )
    assert client.videos.delete(job.id).deleted
    with pytest.raises(openai.NotFoundError, match="no such video"):
        client.videos.retrieve(job.id)


@pytest.mark.parametrize("format_", ["webp", "gif"])
def test_formats(up: Drawing, pipeline: Pipeline, format_: str) -> None:
    job = ended(up, begun(up, **{**QUICK, "output_format": format_, "fps": 12.5})["id"])
    reply = up.get(f"{ROUTE}/{job['id']}/content?variant=video")
    assert reply.headers["content-type"] == f"image/{format_}"
    assert reply.data == file_of(pipeline, QUICK_REQUEST, format_.upper(), 12.5)
    assert up.get(f"{ROUTE}/{job['id']}/content", {"range": "bytes=2-5"}).data == reply.data[2:6]


def test_seconds_become_the_frames_that_come_nearest(up: Drawing) -> None:
    """As 4k + 1, at the frames a second that are asked; as text, which OpenAI's client sends, or as a number."""
    for seconds, fps, frames in (("1", 8, 9), (0.9, 8, 9), (1.3, 8, 9), (1.4, 8, 13), ("0.01", 16, 1)):
        fields = {**QUICK, "num_frames": None, "seconds": seconds, "fps": fps}
        job = begun(up, **fields)
        assert (job["num_frames"], job["seconds"]) == (frames, str(seconds)), (seconds, fps)
        ended(up, job["id"])


def test_what_a_job_leaves_open_is_the_models(up: Drawing, pipeline: Pipeline) -> None:
    job = begun(up, prompt="a cat")
    assert (job["size"], job["num_frames"], job["num_inference_steps"]) == (CLIP_SIZES[0], 81, pipeline.kind.steps)
    assert up.request("DELETE", f"{ROUTE}/{job['id']}").json()["object"] == "video.deleted"
    up.idle()


def test_a_pipeline_whose_frames_are_pictures(tmp_path: Path) -> None:
    """Any number of frames, each decoded by itself."""
    wan_of_pictures(tmp_path, num_frames=6, num_inference_steps=3)
    pipeline = load_pipeline(str(tmp_path), threads=1)
    with drawing({"tiny": pipeline}) as up:
        fields = {**QUICK, "num_frames": None}
        job = ended(up, begun(up, **fields)["id"])
        assert (job["num_frames"], job["status"]) == (6, "completed")
        wanted = file_of(pipeline, replace(QUICK_REQUEST, frames=6), "GIF", 16.0)
        assert up.get(f"{ROUTE}/{job['id']}/content").data == wanted
        assert begun(up, **fields, seconds="0.25")["num_frames"] == 4


def test_a_job_says_how_far_it_is(up: Drawing, pipeline: Pipeline) -> None:
    """Queued until its first stride has run, then by steps of the denoiser, with the seconds that are left by price."""
    with Held(pipeline) as held:
        first = begun(up, **LONG)
        assert held.begun.wait(30)
        assert eventually(lambda: looked(up, first["id"])["status"] == "in_progress")
        now = looked(up, first["id"])
        assert (now["progress"], now["completed_at"]) == (0, None)
        assert now["predicted_time_left_s"] > 0
        second = begun(up, **QUICK)
        assert (second["status"], second["predicted_time_left_s"]) == ("queued", None)
        error = refusal(up, "GET", f"{ROUTE}/{first['id']}/content", 400)
        assert (error["code"], "it is not finished" in error["message"]) == ("video_not_ready", True)
        held.go.set()
        seen = [now]
        while seen[-1]["status"] != "completed":
            seen.append(looked(up, first["id"]))
    for one, other in pairwise(seen):
        assert one["progress"] <= other["progress"]
        assert one["predicted_time_left_s"] >= other["predicted_time_left_s"]
    assert len({each["progress"] for each in seen}) > 2
    assert ended(up, second["id"])["progress"] == 100


# -- several at a time -------------------------------------------------------------------------------------------------


def test_clips_and_a_picture_take_turns(pipeline: Pipeline, pictures: Pipeline) -> None:
    """By priced seconds: none waits for another's end, and each is as if alone."""
    held = Held(pipeline)
    beside = Held(pictures, go=held.go, calls=held.calls)
    with drawing({"clips": pipeline, "pictures": pictures}) as up, held, beside:
        fields = {**QUICK, "num_inference_steps": 16, "model": "clips"}
        first, second = (begun(up, **{**fields, "size": size}) for size in ("64x32", "32x64"))
        assert held.begun.wait(30)
        asked = {"model": "pictures", "prompt": "a cat", "size": "96x64", "num_inference_steps": 8}
        picture = threading.Thread(target=lambda: up.draw(**asked, guidance_scale=0.0))
        picture.start()
        assert eventually(lambda: len(up.service.live) == 3)
        held.go.set()
        picture.join(30)
        assert not picture.is_alive()
        at = [place for place, width in enumerate(held.calls) if width == 24]
        between = held.calls[at[0] : at[-1]]
        assert len(at) == 8
        assert {8, 4} < set(between), "both clips had steps while the picture was drawn"
        for job in (first, second):
            assert ended(up, job["id"])["status"] == "completed"
        switches = sum(one != other for one, other in pairwise(held.calls))
        assert switches > 10, held.calls
        assert up.get(f"{ROUTE}/{first['id']}/content").data == file_of(
            pipeline, DiffusionRequest("a cat", None, Size(64, 32), 16, 0.0, 1, frames=5), "GIF", 16.0
        )


def test_deleting_a_job_ends_it_between_two_steps(up: Drawing, pipeline: Pipeline) -> None:
    """No further pass of the denoiser, no file; the next is as if it had not been."""
    with Held(pipeline) as held:
        job = begun(up, **LONG)
        assert held.begun.wait(30)
        assert up.request("DELETE", f"{ROUTE}/{job['id']}").json()["deleted"]
        refusal(up, "GET", f"{ROUTE}/{job['id']}", 404)
        up.idle()
        held.go.set()
        after = ended(up, begun(up, **QUICK)["id"])
        assert len(held.calls) == 2, "one of the job that was deleted, one of the next"
    assert up.get(f"{ROUTE}/{after['id']}/content").data == file_of(pipeline, QUICK_REQUEST, "GIF", 16.0)


def test_the_queue_is_bounded(pipeline: Pipeline) -> None:
    with drawing({"tiny": pipeline}, ServerSettings(models=("tiny",), queued_requests=1)) as up, Held(pipeline) as held:
        job = begun(up, **QUICK)
        reply = up.post(ROUTE, QUICK)
        assert (reply.status, reply.json()["error"]["code"]) == (429, "queue_full")
        assert 1 <= int(reply.headers["retry-after"]) <= 60
        held.go.set()
        assert ended(up, job["id"])["status"] == "completed"
        begun(up, **QUICK)


def test_frames_that_are_held_are_bounded(pipeline: Pipeline) -> None:
    """GIF and WebP hold all of them, MP4 none."""
    settings = ServerSettings(models=("tiny",), image_bytes=5 * 64 * 32 * 3)
    with drawing({"tiny": pipeline}, settings) as up:
        error = refusal(up, "POST", ROUTE, 400, {**QUICK, "num_frames": 9})
        assert (error["param"], "request fewer frames, or mp4" in error["message"]) == ("output_format", True)
        for fields in (QUICK, {**QUICK, "num_frames": 9, "output_format": "mp4"}):
            assert ended(up, begun(up, **fields)["id"])["status"] == "completed"


# -- what becomes of jobs ----------------------------------------------------------------------------------------------


def test_jobs_are_listed_page_by_page(pipeline: Pipeline) -> None:
    with drawing({"tiny": pipeline}) as up:
        assert up.get(ROUTE).json() == {
            "object": "list",
            "data": [],
            "first_id": None,
            "last_id": None,
            "has_more": False,
        }
        ids = [begun(up, **QUICK)["id"] for _ in range(5)]
        with openai.OpenAI(base_url=f"{up.url}/v1", api_key="none", max_retries=0) as client:
            assert [job.id for job in client.videos.list(limit=2)] == ids[::-1]
            assert [job.id for job in client.videos.list(order="asc", after=ids[1])] == ids[2:]
        page = up.get(f"{ROUTE}?limit=3").json()
        assert (page["first_id"], page["last_id"], page["has_more"]) == (ids[4], ids[2], True)
        for query, param in (("limit=0", "limit"), ("limit=101", "limit"), ("limit=x", "limit"), ("order=up", "order")):
            assert refusal(up, "GET", f"{ROUTE}?{query}", 400)["param"] == param
        refusal(up, "GET", f"{ROUTE}?after=video_1", 404)


def test_a_job_is_told_of_to_the_key_that_asked(pipeline: Pipeline) -> None:
    keys = [{"authorization": f"Bearer {key}"} for key in ("one", "two")]
    with drawing({"tiny": pipeline}, ServerSettings(models=("tiny",), keys=("one", "two"))) as up:
        id = up.post(ROUTE, QUICK, keys[0]).json()["id"]
        assert [len(up.get(ROUTE, key).json()["data"]) for key in keys] == [1, 0]
        assert [up.get(f"{ROUTE}/{id}", key).status for key in keys] == [200, 404]
        assert up.request("DELETE", f"{ROUTE}/{id}", None, keys[1]).status == 404
        assert up.get(f"{ROUTE}/{id}").status == 401


def test_a_clip_expires(pipeline: Pipeline) -> None:
    """Its file goes, and who asks for it hears why."""
    with drawing({"tiny": pipeline}, ServerSettings(models=("tiny",), video_lifetime_seconds=0.3)) as up:
        id = begun(up, **QUICK)["id"]
        path = next(up.jobs.path(job) for job in up.jobs.of(None))
        assert eventually(path.exists)
        assert eventually(lambda: up.get(f"{ROUTE}/{id}").status == 410)
        error = refusal(up, "GET", f"{ROUTE}/{id}/content", 410)
        assert (error["code"], "files are deleted after 0.3 s" in error["message"]) == ("video_expired", True)
        assert not list(path.parent.iterdir())
        assert refusal(up, "GET", f"{ROUTE}/video_0", 404)["code"] == "video_not_found"


def test_files_are_bounded_in_bytes(pipeline: Pipeline) -> None:
    """The oldest goes for the newest; what is larger than all that is kept fails."""
    one = len(file_of(pipeline, QUICK_REQUEST, "GIF", 16.0))
    with drawing({"tiny": pipeline}, ServerSettings(models=("tiny",), video_storage_bytes=2 * one + 10)) as up:
        ids = []
        for _ in range(3):
            ids.append(begun(up, **QUICK)["id"])
            ended(up, ids[-1])
        error = refusal(up, "GET", f"{ROUTE}/{ids[0]}", 410)
        assert "was deleted to make room" in error["message"]
        assert [up.get(f"{ROUTE}/{id}/content").status for id in ids[1:]] == [200, 200]
        job = ended(up, begun(up, **{**QUICK, "num_frames": 21})["id"])
        assert (job["status"], job["error"]["code"], job["error"]["param"]) == ("failed", "too_large", "num_frames")
        assert [up.get(f"{ROUTE}/{id}/content").status for id in ids[1:]] == [200, 200]
        folder = up.jobs.path(next(up.jobs.of(None))).parent
        assert sum(path.stat().st_size for path in folder.iterdir()) <= 2 * one + 10
    assert not folder.exists(), "it goes with the server"


def test_a_job_that_fails_says_why_and_leaves_the_others_alone(
    up: Drawing, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an exception's words: latents that are no numbers, a disk that is full, a file that cannot be written."""
    denoise, write = Pipeline.denoise, video_folder.write_video

    def broken(self: Pipeline, plan: Any, texts: Any) -> Any:
        for step in denoise(self, plan, texts):
            if plan.seed == 666:
                step.latents.fill_(torch.nan)
            yield step

    def refused(file: Any, chunks: Any, format_: str, fps: float, parameters: Any) -> None:
        write(file, chunks, format_, fps, parameters)
        if parameters["seed"] == 667:
            raise OSError(errno.ENOSPC, "a secret")
        if parameters["seed"] == 668:
            raise KeyError("a secret")

    with monkeypatch.context() as patched:
        patched.setattr(Pipeline, "denoise", broken)
        patched.setattr(video_folder, "write_video", refused)
        for seed, code in ((666, "failed"), (667, "storage_full"), (668, "failed")):
            failing, other = (begun(up, **{**QUICK, "seed": each})["id"] for each in (seed, 1))
            job = ended(up, failing)
            assert (job["status"], job["error"]["code"], job["completed_at"]) == ("failed", code, None)
            assert "secret" not in job["error"]["message"]
            assert "its generation failed" in refusal(up, "GET", f"{ROUTE}/{failing}/content", 400)["message"]
            assert ended(up, other)["status"] == "completed"
    assert not up.jobs.path(next(job for job in up.jobs.of(None) if job.id == failing)).exists()


def test_what_does_not_fit_into_memory_fails_before_it_runs(pipeline: Pipeline) -> None:
    with drawing({"tiny": pipeline}, room=1000.0) as up, Held(pipeline) as held:
        job = ended(up, begun(up, **QUICK)["id"])
        assert (job["status"], job["error"]["code"], job["error"]["param"]) == ("failed", "too_large", "size")
        assert not held.calls


def test_the_server_does_not_wait_for_jobs_when_it_ends(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody could fetch them later; their files go."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folders: list[Path] = []

    async def scenario(up: Up) -> None:
        async with up.session.post(up.url + ROUTE, json=LONG | {"num_inference_steps": 400}) as response:
            job = await response.json()
        async with up.session.get(f"{up.url}{ROUTE}/{job['id']}") as response:
            assert response.status == 200
        folders.extend(tmp_path.iterdir())
        os.kill(os.getpid(), signal.SIGTERM)

    assert lives(served(folder), scenario) == 0
    assert len(folders) == 1
    assert not folders[0].exists()


def test_metrics(pipeline: Pipeline) -> None:
    with drawing({"tiny": pipeline}) as up:
        ended(up, begun(up, **QUICK)["id"])
        up.idle()
        families = {each.name: each for each in text_string_to_metric_families(up.get("/metrics").data.decode())}
        assert families["ridgeline:clips"].samples[0].value == 1
        assert families["ridgeline:images"].samples[0].value == 0
        counts = {
            sample.labels["phase"]: sample.value
            for sample in families["ridgeline:step_seconds"].samples
            if sample.name.endswith("_count")
        }
        assert counts == {"encode": 1, "denoise": 1, "decode": 2}


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "param", "code", "says"),
    [
        ({"prompt": None}, "prompt", "missing_field", "describe what to generate"),
        ({"prompt": "x" * 2000}, "prompt", "invalid_value", "prompt"),
        (
            {"size": "1024x1024"},
            "size",
            "invalid_value",
            "this model cannot make size 1024x1024; give one of 64x32, 32x64",
        ),
        ({"size": "big"}, "size", "invalid_value", "write width x height in pixels"),
        (
            {"num_frames": 6},
            "num_frames",
            "invalid_value",
            "this model cannot make 6 frames: the number must be 4k + 1, like 5 or 9",
        ),
        ({"num_frames": 0}, "num_frames", "invalid_value", "this model cannot make 0 frames: it makes 1 to "),
        ({"num_frames": 10**6}, "num_frames", "invalid_value", "it makes 1 to "),
        ({"seconds": "4"}, "num_frames", "invalid_value", "give only one of the two"),
        ({"seconds": "4000", "num_frames": None}, "seconds", "invalid_value", "a number above 0"),
        ({"seconds": "10", "num_frames": None}, "seconds", "invalid_value", "it makes 1 to "),
        ({"seconds": 0, "num_frames": None}, "seconds", "invalid_value", "a number above 0"),
        ({"seconds": "four", "num_frames": None}, "seconds", "invalid_value", "a number above 0"),
        ({"seconds": "nan", "num_frames": None}, "seconds", "invalid_value", "a number above 0"),
        ({"fps": 0}, "fps", "invalid_value", "at most 240"),
        ({"fps": 1e9}, "fps", "invalid_value", "at most 240"),
        (
            {"num_inference_steps": 0},
            "num_inference_steps",
            "invalid_value",
            "the number of steps is 0; this model takes 1 to 999",
        ),
        ({"num_inference_steps": 10**6}, "num_inference_steps", "invalid_value", "steps"),
        ({"guidance_scale": -1}, "guidance_scale", "invalid_value", "guidance"),
        ({"guidance_scale_2": 3.0}, "guidance_scale_2", "invalid_value", "has one denoiser"),
        ({"step_cache": -1}, "step_cache", "invalid_value", "0 or more, like 0.1"),
        (
            {"negative_prompt": "blurred"},
            "negative_prompt",
            "invalid_value",
            "the negative prompt would have no effect",
        ),
        ({"seed": -1}, "seed", "invalid_value", "seed is -1; it must be"),
        ({"output_format": "avi"}, "output_format", "invalid_value", "output_format is 'avi'; give gif or mp4 or webp"),
        ({"n": 2}, "n", "unknown_field", "unknown field"),
        ({"input_reference": "x"}, "input_reference", "unsupported_field", "not supported here"),
        ({"flow_shift": 3.0}, "flow_shift", "unknown_field", "unknown field"),
        ({"model": "other"}, "model", "model_not_found", "the models of this server are tiny"),
    ],
)
def test_bad_fields(up: Drawing, more: Any, param: str, code: str, says: str) -> None:
    """In JSON, and those that a form can have in one."""
    fields = {**QUICK, **more}
    for form in (False, True):
        body, headers = (form_of(fields), FORM) if form else (fields, {})
        reply = up.post(ROUTE, body, headers)
        error = reply.json()["error"]
        assert (reply.status, error["param"], error["code"]) == (404 if "model" in more else 400, param, code), error
        assert says in error["message"]
        assert "\n" not in error["message"]
    assert not up.service.live


FORM = {"content-type": "multipart/form-data; boundary=xyz"}


def form_of(fields: dict[str, Any]) -> bytes:
    """As browsers and OpenAI's client send them."""
    parts = (
        f'--xyz\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
        if value is not None
    )
    return ("".join(parts) + "--xyz--\r\n").encode()


def refused_form(up: Drawing, body: bytes) -> Any:
    reply = up.post(ROUTE, body, FORM)
    assert reply.status == 400, reply.data
    return reply.json()["error"]


def test_forms(up: Drawing, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file to begin with is refused by name; so are numbers that are none, a form that is cut, and one that the
    server cannot read."""
    with pytest.raises(openai.BadRequestError, match="input_reference is not supported here"):
        client.videos.create(prompt="a cat", input_reference=("a.png", b"x"))
    for name, value in (("num_frames", "2.5"), ("seed", "x"), ("fps", ""), ("fps", "nan")):
        assert refused_form(up, form_of({**QUICK, name: value}))["param"] == name
    for body in (b"", b"--xyz\r\n", form_of(QUICK)[:-20].replace(b"name", b"nome")):
        assert refused_form(up, body)["code"] in ("invalid_form", "missing_field")
    monkeypatch.setattr("ridgeline.server.http.form.PACKAGE", "no_such_package")
    assert "send JSON" in refused_form(up, form_of(QUICK))["message"]


def test_without_av_clips_are_webp(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise ValueError("writing mp4 needs the package av: pip install")

    monkeypatch.setattr("ridgeline.media.diffusion.video_file._av", missing)
    with drawing({"tiny": pipeline}) as up:
        job = begun(up, **{**QUICK, "output_format": None})
        assert ended(up, job["id"])["output_format"] == "webp"
        error = refusal(up, "POST", ROUTE, 400, {**QUICK, "output_format": "mp4"})
        assert (error["param"], error["code"]) == ("output_format", "unsupported_field")
        assert "pip install" in error["message"]


def test_content_has_one_variant(up: Drawing) -> None:
    id = ended(up, begun(up, **QUICK)["id"])["id"]
    error = refusal(up, "GET", f"{ROUTE}/{id}/content?variant=thumbnail", 400)
    assert (error["param"], error["code"]) == ("variant", "unsupported_field")
    assert up.post(f"{ROUTE}/{id}/content", {}).status == 405
    assert up.post(f"{ROUTE}/{id}/remix", {}).status == 404


def test_a_model_of_another_kind_says_what_to_ask(up: Drawing, pictures: Pipeline, server: Running) -> None:
    """Pictures of one that makes clips, clips of one that draws or writes; text, where both are served too."""
    said = up.post("/v1/completions", {}).json()["error"]["message"]
    assert said == f"the model generates videos, not text: use {ROUTE}"
    with drawing({"tiny": pictures, "other": up.service.engine.pipelines["tiny"]}) as both:
        said = both.post("/v1/completions", {}).json()["error"]["message"]
        assert said == f"the model generates images and videos, not text: use {IMAGES} for images or {ROUTE} for videos"
    with drawing({"tiny": pictures}) as drawn:
        for where, route, says in (
            (up, IMAGES, "use /v1/videos"),
            (drawn, ROUTE, f"use {IMAGES}"),
            (server, ROUTE, ""),
        ):
            reply = where.post(route, {"prompt": "a cat"})
            error = reply.json()["error"]
            assert (reply.status, error["code"], says in error["message"]) == (400, "unsupported_model", True)
    (card,) = up.get("/v1/models").json()["data"]
    assert (card["num_frames"], card["limits"]["clip_bytes"]) == (81, 1 << 30)
    assert video_routes.POLL_AFTER in up.get(f"{ROUTE}/{begun(up, **QUICK)['id']}").headers
    up.idle()
