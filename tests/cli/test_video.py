"""`ridgeline video` on random weights: files and what is in them, what is said, what is refused."""

import json
import re
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from cli.running import OK, REFUSED, USAGE, Run, assert_one_line
from ridgeline.media.diffusion.diffusion_request import DiffusionRequest
from ridgeline.media.diffusion.geometry import Size
from ridgeline.media.diffusion.image_file import to_bytes
from ridgeline.media.diffusion.pipeline_loader import load_pipeline
from ridgeline.media.diffusion.saved_latents import latents_path, read_latents
from support.pipelines import wan, z_image

PROMPT, NEGATIVE = "a naïve cat — 猫", "blurred"
REQUEST = ("--negative", NEGATIVE, "--size", "64x32", "--frames", "5", "--steps", "3", "--guidance", "2", "--seed", "5")

pytestmark = pytest.mark.usefixtures("not_probed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("wan")
    wan(path, experts=True)
    return path


@pytest.fixture(scope="module")
def expected(folder: Path) -> "np.ndarray[Any, Any]":
    """What Python draws of REQUEST: [frames, lines, columns, 3]."""
    pipeline = load_pipeline(str(folder), threads=1)
    (drawn,) = pipeline.draw(DiffusionRequest(PROMPT, NEGATIVE, Size(64, 32), 3, 2.0, 5, frames=5))
    return np.stack([to_bytes(frame).numpy() for frame in drawn.unbind(1)])


def test_a_folder_of_frames(ridgeline: Run, folder: Path, tmp_path: Path, expected: "np.ndarray[Any, Any]") -> None:
    """Each as Python draws it; what it takes and took on stderr, no latents left."""
    path = tmp_path / "cat"
    ended = ridgeline("video", folder, PROMPT, *REQUEST, "-o", path)
    assert (ended.code, ended.out) == (OK, f"{path}\n"), ended.err
    assert [each.name for each in tmp_path.iterdir()] == ["cat"]
    files = sorted(path.iterdir())
    assert [file.name for file in files] == [f"{number:05}.png" for number in range(1, 6)]
    drawn = np.stack([np.asarray(Image.open(file)) for file in files])
    assert np.abs(drawn.astype(int) - expected.astype(int)).max() <= 1
    with Image.open(files[2]) as image:
        kept = json.loads(image.text["parameters"])  # type: ignore[attr-defined]
    wanted = {"prompt": PROMPT, "negative": NEGATIVE, "frames": 5, "frame": 3, "fps": 16.0, "seed": 5, "size": "64x32"}
    assert {name: kept[name] for name in wanted} == wanted
    assert "one video of 5 frames of 64x32 pixels, seed 5" in ended.err
    assert "8 x 4 x 2 latents of 4 channels, 16 tokens" in ended.err
    assert "3 steps x 2 = 6 passes per video: guidance 2 (w = 2, 2 for the second expert)" in ended.err
    assert re.search(r"memory: weights .* one pass .* decode .* frame by frame", ended.err)
    for stage in ("encode", "denoise", "decode", "all"):
        assert re.search(rf"^{stage} +[\d.]+ [mµn]?s +[\d.]+ [mµn]?s", ended.err, re.MULTILINE)


def test_mp4_is_the_default(
    ridgeline: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: "np.ndarray[Any, Any]"
) -> None:
    """Named after the model and the seed, at the pace that is asked, with what it was drawn from."""
    monkeypatch.chdir(tmp_path)
    ended = ridgeline("video", folder, PROMPT, *REQUEST, "--fps", "12", "--second-guidance", "2", "--json")
    assert ended.code == OK, ended.err
    (name,) = ended.json["files"]
    assert name == f"{folder.name}-5.mp4"
    assert (ended.json["frames"], ended.json["passes"], ended.json["latents"]) == (5, 6, [4, 2, 4, 8])
    with av.open(name) as container:
        assert float(container.streams.video[0].average_rate or 0) == 12
        kept = json.loads(container.metadata["comment"])
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert (kept["prompt"], kept["fps"], kept["second_guidance"]) == (PROMPT, 12, 2)
    assert np.stack(frames).shape == expected.shape


def test_several_clips_and_their_latents(ridgeline: Run, folder: Path, tmp_path: Path) -> None:
    """Each from its own seed; latents that were kept are decoded again, into another format."""
    ended = ridgeline(
        "video", folder, PROMPT, *REQUEST, "-n", 2, "-o", tmp_path / "cat.gif", "--keep-latents", "--quiet"
    )
    assert (ended.code, ended.err) == (OK, ""), ended.err
    names = [tmp_path / f"cat-{number}.gif" for number in (1, 2)]
    with Image.open(names[1]) as image:
        assert image.n_frames == 5  # type: ignore[attr-defined]
    latents, parameters = read_latents(latents_path(names[1]))
    assert latents.shape == (4, 2, 4, 8)
    assert (parameters["seed"], parameters["frames"]) == (6, 5)
    again = tmp_path / "again.webp"
    ended = ridgeline("video", folder, "--latents", latents_path(names[1]), "--fps", "8", "-o", again)
    assert (ended.code, ended.out) == (OK, f"{again}\n"), ended.err
    with Image.open(again) as image:
        image.seek(1)
        image.load()
        assert image.info["duration"] == 125


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("x", "--frames", "8"), "this model cannot make 8 frames: the number must be 4k + 1, like 5 or 9"),
        (("x", "--size", "64x64"), "this model cannot make size 64x64; give one of 64x32, 32x64"),
        (("x", "--fps", "0"), "the frame rate is 0.0; give frames per second above 0"),
        (("x", "--fps", "nan"), "the frame rate is nan"),
        (("x", "-o", "cat.avi"), "cat.avi: videos are written as .mp4, .gif, .webp"),
        (("x", "--steps", "0"), "the number of steps is 0; this model takes 1 to 999"),
        ((), "give a prompt"),
        (("x", "--latents", "x.latents.safetensors"), "a prompt is for generation"),
        (("--frames", "5", "--latents", "x.latents.safetensors"), "--frames is for generation"),
    ],
)
def test_what_is_refused(ridgeline: Run, folder: Path, arguments: tuple[str, ...], problem: str) -> None:
    """In one line."""
    assert_one_line(ridgeline("video", folder, *arguments), USAGE, problem)


def test_commands_for_language(ridgeline: Run, folder: Path) -> None:
    """A pipeline of clips, and its denoiser, are told where they belong."""
    for given, what, where in (
        (folder, "WanPipeline", "give it to ridgeline image, ridgeline video or ridgeline plan"),
        (folder / "transformer", "WanTransformer3DModel", "folder to ridgeline image or ridgeline video"),
    ):
        assert_one_line(ridgeline("run", given, "x"), REFUSED, what, where)


def test_each_command_draws_its_own(ridgeline: Run, folder: Path, tmp_path: Path) -> None:
    """Before anything is loaded."""
    z_image(tmp_path)
    assert_one_line(ridgeline("image", folder, "x"), USAGE, "generates videos; use ridgeline video")
    assert_one_line(ridgeline("video", "digits-ar", "x"), USAGE, "digits-ar generates images; use ridgeline image")
    assert_one_line(ridgeline("video", tmp_path, "x"), USAGE, "generates images; use ridgeline image")
