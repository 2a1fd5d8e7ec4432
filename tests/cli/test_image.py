"""`ridgeline image` on random weights: files and what is in them, what is said, and runs that end early."""

import json
import os
import re
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from cli.running import INTERRUPTED, OK, REFUSED, USAGE, Run, assert_one_line
from ridgeline.core.models.common.tiling import Tiling
from ridgeline.core.ops.pixel_grid import PixelGrid
from ridgeline.insight.trace.interference import Interference
from ridgeline.media.diffusion import decoding
from ridgeline.media.diffusion.cfg_parallel import CFGParallelPair
from ridgeline.media.diffusion.decoding import choose_tiling
from ridgeline.media.diffusion.diffusion_request import DiffusionPlan, DiffusionRequest
from ridgeline.media.diffusion.geometry import Size
from ridgeline.media.diffusion.image_file import to_bytes
from ridgeline.media.diffusion.pipeline import DenoiseOutput, Pipeline
from ridgeline.media.diffusion.pipeline_loader import load_pipeline, load_vae
from ridgeline.media.diffusion.saved_latents import latents_path, read_latents, save_latents
from ridgeline.price.devices import load_device
from support.pipelines import z_image

PROMPT, NEGATIVE = "a naïve cat — 猫", "blurred"
REQUEST = ("--negative", NEGATIVE, "--size", "64x64", "--steps", "4", "--guidance", "2", "--seed", "5")

pytestmark = pytest.mark.usefixtures("not_probed")


@pytest.fixture(scope="module")
def folder(z_image_folder: Path) -> Path:
    return z_image_folder


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[np.ndarray[Any, Any]]:
    """What Python draws of REQUEST, two pictures."""
    pipeline = load_pipeline(str(folder), threads=1)
    drawn = pipeline.draw(DiffusionRequest(PROMPT, NEGATIVE, Size(64, 64), 4, 2.0, 5, 2))
    return [to_bytes(pixels).numpy() for pixels in drawn]


def pixels_of(path: Path) -> np.ndarray[Any, Any]:
    with Image.open(path) as opened:
        return np.asarray(opened)


def near(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any], steps: int = 1) -> bool:
    """Whether pixels differ by so many of their 255 steps at most: a batch's rounding may fall to either side."""
    return one.shape == other.shape and int(np.abs(one.astype(int) - other.astype(int)).max()) <= steps


# -- files ------------------------------------------------------------------------------------------------------------


def test_one_picture(ridgeline: Run, folder: Path, tmp_path: Path, expected: list[np.ndarray[Any, Any]]) -> None:
    """Its name on stdout, what it takes and took on stderr, no latents left."""
    path = tmp_path / "cat.png"
    ended = ridgeline("image", folder, PROMPT, *REQUEST, "-o", path)
    assert (ended.code, ended.out) == (OK, f"{path}\n"), ended.err
    assert near(pixels_of(path), expected[0])
    assert [each.name for each in tmp_path.iterdir()] == ["cat.png"]
    said = ended.err
    assert "one image of 64x64 pixels, seed 5" in said
    assert "16 x 16 latents of 4 channels, 64 tokens; text tokens: prompt " in said
    assert "4 steps x 2 = 8 passes per image: guidance 2 (w = 3); both passes of a step in one call" in said
    assert re.search(r"memory: weights .* one pass .* decode [^;]* whole$", said, re.MULTILINE)  # tiles take the same
    assert re.search(r"predicted: encode .*, denoise .*, decode .* per step\) on ", said)
    assert re.search(
        r"^all stages .* in 8 of 10 cases like this one \(\d+ measurements of \d+ sources", said, re.MULTILINE
    )
    for stage in ("encode", "denoise", "decode", "all"):
        assert re.search(rf"^{stage} +[\d.]+ [mµn]?s +[\d.]+ [mµn]?s", said, re.MULTILINE)


def test_several_pictures(ridgeline: Run, folder: Path, tmp_path: Path, expected: list[np.ndarray[Any, Any]]) -> None:
    """Numbered, each from its own seed, with the latents that were asked for; told as data."""
    ended = ridgeline(
        "image", folder, PROMPT, *REQUEST, "-n", 2, "-o", tmp_path / "cat.webp", "--json", "--keep-latents"
    )
    assert ended.code == OK, ended.err
    told = ended.json
    assert told["files"] == [str(tmp_path / f"cat-{number}.webp") for number in (1, 2)]
    assert (told["passes"], told["paired"], told["tokens"], told["latents"]) == (8, True, 64, [4, 16, 16])
    assert set(told["predicted"]) == set(told["measured"]) == {"encode", "denoise", "decode"}
    low, high = told["predicted_interval"]
    assert low < sum(told["predicted"].values()) < high
    for image, name in enumerate(told["files"]):
        assert near(pixels_of(Path(name)), expected[image])
        latents, parameters = read_latents(latents_path(Path(name)))
        assert latents.shape == (4, 16, 16)
        assert parameters["seed"] == 5 + image


def test_a_step_cache(ridgeline: Run, folder: Path, tmp_path: Path) -> None:
    """What it keeps before, what it skipped after, in lines and as data, and in the file; not with saved latents."""
    path = tmp_path / "cat.png"
    drawn = ("image", folder, PROMPT, *REQUEST, "-o", path, "--step-cache")
    ended = ridgeline(*drawn, "1e9", "-n", 2)
    assert ended.code == OK, ended.err
    assert "step cache 1e+09: keeps " in ended.err
    assert "step cache 1e+09: 12 of 16 passes skipped all but their first block" in ended.err
    told = ridgeline(*drawn, "0", "--json", "--keep-latents").json
    assert (told["passes"], told["passes_skipped"], told["step_cache"]) == (8, 0, 0.0)
    denoiser = load_pipeline(str(folder), threads=1).denoiser
    assert told["memory"]["step_cache"] == 2 * 2 * 64 * denoiser.hidden * 4
    latents, parameters = read_latents(latents_path(path))
    assert parameters["step_cache"] == 0.0
    assert ridgeline("image", folder, PROMPT, *REQUEST, "-o", path, "--json", "--keep-latents", "--force").code == OK
    assert torch.equal(read_latents(latents_path(path))[0], latents)
    assert_one_line(
        ridgeline(*drawn, "-1", "--force"),
        USAGE,
        "the step cache's threshold is -1.0; give the relative change below which",
    )
    saved = ("image", folder, "--latents", latents_path(path), "--step-cache", "0.1")
    assert_one_line(ridgeline(*saved), USAGE, "--step-cache is for generation")


def test_compiled_blocks(ridgeline: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What compiling took is said apart, and it is done once, with what is drawn; not with what it cannot go with."""
    asked: list[tuple[int, int]] = []

    def compile_blocks(pipeline: Pipeline, plan: DiffusionPlan, texts: Sequence[Tensor]) -> int:
        asked.append((plan.request.images, len(texts)))
        return 7

    monkeypatch.setattr("ridgeline.cli.diffusion_run.compile_blocks", compile_blocks)
    drawn = ("image", folder, PROMPT, *REQUEST, "-o", tmp_path / "cat.png", "--json")
    ended = ridgeline(*drawn, "--compile", "-n", 2)
    assert ended.code == OK, ended.err
    assert "compiled 7 blocks of the denoiser in " in ended.err
    assert ended.json["compile_seconds"] > 0
    assert ridgeline(*drawn, "-n", 2, "--force").json["compile_seconds"] is None
    assert asked == [(2, 2)]
    both = ridgeline(*drawn, "--compile", "--cfg-parallel")
    assert_one_line(both, USAGE, "--compile works only in one process; leave out --compile or --cfg-parallel")
    saved = ridgeline("image", folder, "--latents", tmp_path / "none", "--compile")
    assert_one_line(saved, USAGE, "--compile is for generation")


@pytest.mark.parametrize("model", ["FOLDER", "digits-ar"])
def test_why_it_took_longer(
    ridgeline: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    """Beside what was measured stands who held it up, and that nobody calibrated the machine."""

    @contextmanager
    def noted(meanwhile: Interference) -> Iterator[None]:
        yield
        meanwhile.seconds_lost += 100.0

    probed = replace(load_device("h100-sxm"), basis="probe")
    for command in ("diffusion_run", "image_tokens"):
        monkeypatch.setattr(f"ridgeline.cli.{command}.device_at", lambda *_: probed)
    monkeypatch.setattr(Interference, "recording", noted)
    drawn = REQUEST if model == "FOLDER" else ()
    ended = ridgeline("image", model.replace("FOLDER", str(folder)), PROMPT, *drawn, "-o", tmp_path / "cat.png")
    assert ended.code == OK, ended.err
    after = ended.err.partition("predicted    measured")[2]
    assert re.search(r"^the machine is busy: other processes delayed this run by [\d,]+ s of ", after, re.MULTILINE)
    assert after.endswith(
        "\nnot calibrated, so expected times are rough; run `ridgeline calibrate` to measure this machine\n"
    )


def test_each_picture_can_be_drawn_again(ridgeline: Run, folder: Path, tmp_path: Path) -> None:
    """From what its file says, alone."""
    ridgeline("image", folder, PROMPT, *REQUEST, "-n", 2, "-o", tmp_path / "cat.png")
    with Image.open(tmp_path / "cat-2.png") as opened:
        kept = json.loads(opened.text["parameters"])  # type: ignore[attr-defined]
    again = tmp_path / "again.png"
    ended = ridgeline(
        "image", folder, kept["prompt"], "--negative", kept["negative"], "--size", kept["size"], "--steps",
        kept["steps"], "--guidance", kept["guidance"], "--seed", kept["seed"], "-o", again,
    )  # fmt: skip
    assert ended.code == OK, ended.err
    assert near(pixels_of(again), pixels_of(tmp_path / "cat-2.png"))


@pytest.mark.parametrize("suffix", ["png", "webp", "jpg", "JPEG"])
def test_what_is_in_a_file(ridgeline: Run, folder: Path, tmp_path: Path, suffix: str) -> None:
    """The parameters, in any format, whatever script the prompt is in; pixels but for JPEG's loss."""
    path, exact = tmp_path / f"cat.{suffix}", tmp_path / "exact.png"
    ridgeline("image", folder, PROMPT, *REQUEST, "-o", exact)
    assert ridgeline("image", folder, PROMPT, *REQUEST, "-o", path).code == OK
    with Image.open(path) as opened:
        assert opened.format == {"png": "PNG", "webp": "WEBP"}.get(suffix, "JPEG")
        if suffix == "png":
            kept, software = opened.text["parameters"], opened.text["Software"]  # type: ignore[attr-defined]
            assert opened.text["Description"] == PROMPT  # type: ignore[attr-defined]
        else:
            exif = opened.getexif()
            kept, software = exif[0x010E], exif[0x0131]
    assert json.loads(kept) == {
        "model": folder.name, "prompt": PROMPT, "negative": NEGATIVE, "size": "64x64", "steps": 4, "guidance": 2.0,
        "seed": 5,
    }  # fmt: skip
    assert software.startswith("ridgeline ")
    assert near(pixels_of(path), pixels_of(exact), 0 if suffix in ("png", "webp") else 255)


def test_grey(ridgeline: Run, tmp_path: Path) -> None:
    z_image(tmp_path / "grey", pixels=1)
    for suffix in ("png", "webp", "jpg"):
        path = tmp_path / f"grey.{suffix}"
        assert ridgeline("image", tmp_path / "grey", "x", "--steps", 1, "--size", "64x64", "-o", path).code == OK
        with Image.open(path) as opened:
            assert opened.mode == ("RGB" if suffix == "webp" else "L")  # WebP has no grey


def test_a_name_of_its_own(ridgeline: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder's and the seed, here; a seed that nobody gave is said, and draws the same again."""
    monkeypatch.chdir(tmp_path)
    first = ridgeline("image", folder, "x", "--steps", 1, "--size", "64x64")
    name = first.out.strip()
    seed = re.fullmatch(rf"{folder.name}-(\d+)\.png", name)
    assert seed is not None
    assert f"seed {seed[1]}\n" in first.err
    pixels = pixels_of(tmp_path / name)
    there = ridgeline("image", folder, "x", "--steps", 1, "--size", "64x64", "--seed", seed[1])
    assert_one_line(there, USAGE, f"{name} exists already", "--force")
    ridgeline("image", folder, "x", "--steps", 1, "--size", "64x64", "--seed", seed[1], "--force")
    assert np.array_equal(pixels_of(tmp_path / name), pixels)


# -- previews, tiles, interrupts, latents ------------------------------------------------------------------------------


def test_previews(ridgeline: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file shows the guess until the picture is there, which is the same bit for bit; a large one's are small."""
    seen: list[tuple[str, Any, bytes]] = []
    path = tmp_path / "cat.png"
    from ridgeline.cli import image_files

    def watched(to: Path, content: bytes) -> None:
        to.write_bytes(content)
        with Image.open(to) as opened:
            kept = json.loads(opened.text["parameters"])  # type: ignore[attr-defined]
            seen.append((kept.get("preview", ""), opened.size, np.asarray(opened).tobytes()))

    ridgeline("image", folder, PROMPT, *REQUEST, "-o", path)
    plain = pixels_of(path).tobytes()
    monkeypatch.setattr(image_files, "write_whole", watched)
    monkeypatch.setattr(decoding, "PREVIEW", 8)
    assert ridgeline("image", folder, PROMPT, *REQUEST, "-o", path, "--force", "--preview", 2).code == OK
    assert [(said, size) for said, size, _ in seen] == [("step 2 of 4", (32, 32)), ("", (64, 64))]
    assert seen[-1][2] == plain


def test_tiles(ridgeline: Run, folder: Path, tmp_path: Path) -> None:
    """Off and auto are the whole where memory suffices; tiles are what the VAE gives in tiles, and are said."""
    given: dict[str, np.ndarray[Any, Any]] = {}
    for tile in ("auto", "off", "8"):
        path = tmp_path / f"{tile}.png"
        ended = ridgeline("image", folder, PROMPT, *REQUEST, "-o", path, "--tile", tile, "--keep-latents")
        assert ("in tiles of 8 latents" in ended.err) == (tile == "8"), ended.err
        given[tile] = pixels_of(path)
    assert np.array_equal(given["auto"], given["off"])
    assert not np.array_equal(given["8"], given["off"])
    latents, _ = read_latents(tmp_path / "8.latents.safetensors")
    tiled = load_vae(str(folder), threads=1).decode(latents[None], Tiling(8, 2))[0]
    assert np.array_equal(given["8"], to_bytes(tiled).numpy())


def test_tiles_by_memory(folder: Path) -> None:
    """The whole where half of the memory holds it, else the largest tiles that do, else one line."""
    autoencoder, latents = load_vae(str(folder), threads=1), PixelGrid(1, 128, 128)
    needs = [autoencoder.decode_bytes(latents, tiling) for tiling in (None, *(Tiling(n, n // 4) for n in (64, 32, 16)))]
    assert needs == sorted(needs, reverse=True)
    chosen = [choose_tiling(autoencoder, latents, 2 * nbytes) for nbytes in needs]
    assert chosen == [None, Tiling(64, 16), Tiling(32, 8), Tiling(16, 4)]
    with pytest.raises(
        ValueError,
        match=r"^decoding in tiles of 16 latents needs .* of free memory, but .* is free: close other programs",
    ):
        choose_tiling(autoencoder, latents, needs[-1])


def test_latents_are_there_when_decoding_fails(
    ridgeline: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And how to decode them is said; that gives the picture which would have come."""
    path, latents = tmp_path / "cat.png", tmp_path / "cat.latents.safetensors"
    ridgeline("image", folder, PROMPT, *REQUEST, "-o", path)
    picture = pixels_of(path)
    path.unlink()

    def refused(self: Pipeline, latents: Tensor, tiling: Tiling | None = None) -> Tensor:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(Pipeline, "decode_parts", refused)
        ended = ridgeline("image", folder, PROMPT, *REQUEST, "-o", path)
    assert ended.code == USAGE
    assert not path.exists()
    assert (
        f"the latents are saved in {latents}; decode them with: ridgeline image {folder} --latents {latents}"
        in ended.err
    )
    assert "out of memory" in ended.err
    later = ridgeline("image", folder, "--latents", latents)
    assert (later.code, later.out) == (OK, f"{path}\n"), later.err
    assert np.array_equal(pixels_of(path), picture)
    assert latents.exists(), "what was given is not taken away"
    with Image.open(path) as opened:
        assert json.loads(opened.text["parameters"])["prompt"] == PROMPT  # type: ignore[attr-defined]


def _interrupted(monkeypatch: pytest.MonkeyPatch, at: Sequence[int]) -> None:
    """Ctrl-C before these steps, counted from 1."""
    denoise, count = Pipeline.denoise, [0]

    def pressed(
        self: Pipeline, plan: DiffusionPlan, texts: Sequence[Tensor], pair: CFGParallelPair | None = None
    ) -> Iterator[DenoiseOutput]:
        for step in denoise(self, plan, texts, pair):
            count[0] += 1
            for _ in range(list(at).count(count[0])):
                os.kill(os.getpid(), signal.SIGINT)
            yield step

    monkeypatch.setattr(Pipeline, "denoise", pressed)


def test_an_interrupt(ridgeline: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two steps: a line that says what there is, 130, and what would have come can be looked at."""
    path, latents = tmp_path / "cat.png", tmp_path / "cat.latents.safetensors"
    with monkeypatch.context() as patched:
        _interrupted(patched, [2])
        ended = ridgeline("image", folder, PROMPT, *REQUEST, "-o", path)
    assert ended.code == INTERRUPTED
    assert ended.err.splitlines()[-1].startswith(
        f"stopped after step 2 of 4; the latents of the unfinished rest are saved in {latents}"
    )
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert not path.exists()
    assert read_latents(latents)[1]["stopped"] == "step 2 of 4"
    assert ridgeline("image", folder, "--latents", latents, "-o", path).code == OK
    pipeline = load_pipeline(str(folder), threads=1)
    plan = pipeline.plan(DiffusionRequest(PROMPT, NEGATIVE, Size(64, 64), 4, 2.0, 5))
    steps = list(pipeline.denoise(plan, pipeline.encode(plan)))
    assert near(pixels_of(path), to_bytes(pipeline.decode(steps[1].predicted_latents)[0]).numpy())


def test_an_interrupt_after_a_preview(
    ridgeline: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file shows an earlier step, which is said; what is said decodes over it."""
    path, latents = tmp_path / "cat.png", tmp_path / "cat.latents.safetensors"
    with monkeypatch.context() as patched:
        _interrupted(patched, [3])
        ended = ridgeline("image", folder, PROMPT, *REQUEST, "-o", path, "--preview", 1)
    assert ended.code == INTERRUPTED
    assert (
        f"(preview of step 2: {path}); decode them with: ridgeline image {folder} --latents {latents} --force"
        in ended.err
    )
    before = pixels_of(path)
    assert_one_line(ridgeline("image", folder, "--latents", latents), USAGE, "exists already")
    assert ridgeline("image", folder, "--latents", latents, "--force").code == OK
    assert not np.array_equal(pixels_of(path), before)


def test_an_interrupt_among_several(
    ridgeline: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other: the first is drawn, the second is kept as far as it came."""
    monkeypatch.setattr("ridgeline.media.diffusion.pipeline.ridge_seconds", float)
    _interrupted(monkeypatch, [7])
    ended = ridgeline("image", folder, PROMPT, *REQUEST, "-n", 3, "-o", tmp_path / "cat.png")
    assert ended.code == INTERRUPTED
    assert ended.out == f"{tmp_path / 'cat-1.png'}\n"
    assert (
        f"stopped after step 7 of 12; {tmp_path / 'cat-1.png'} is finished; the latents of the unfinished rest "
        f"are saved in {tmp_path / 'cat-2.lat'}" in ended.err
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cat-1.png", "cat-2.latents.safetensors"]


def test_an_interrupt_at_the_last_step_is_too_late(
    ridgeline: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _interrupted(monkeypatch, [4])
    assert ridgeline("image", folder, PROMPT, *REQUEST, "-o", tmp_path / "cat.png").code == OK


def test_two_interrupts(ridgeline: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second does not wait."""
    _interrupted(monkeypatch, [2, 2])
    ended = ridgeline("image", folder, PROMPT, *REQUEST, "-o", tmp_path / "cat.png")
    assert ended.code == INTERRUPTED
    assert not list(tmp_path.iterdir())


# -- bad input ---------------------------------------------------------------------------------------------------------


def test_a_prompt_without_a_model_is_told_where_the_model_goes(ridgeline: Run) -> None:
    ended = ridgeline("image", "a cat")
    assert_one_line(
        ended, REFUSED, "no such model or folder: a cat; if this is the prompt, MODEL comes before it: ridgeline image "
        "digits 'a cat'; if not, ",
    )  # fmt: skip
    assert_one_line(ridgeline("image", "digit", "a seven"), REFUSED, "no such model or folder: digit; did you mean")


def test_what_cannot_be_drawn(ridgeline: Run, folder: Path, tmp_path: Path) -> None:
    """One line each, before anything is loaded where that can be, and no file."""
    there, broken = tmp_path / "there.png", tmp_path / "broken"
    there.touch()
    shutil.copytree(folder, broken)
    shutil.rmtree(broken / "vae")
    hollow = tmp_path / "hollow"
    shutil.copytree(folder, hollow)
    (hollow / "vae" / "diffusion_pytorch_model.safetensors").unlink()
    of_others = tmp_path / "others.latents.safetensors"
    save_latents(of_others, torch.zeros(3, 8, 8), {})
    for arguments, code, *says in (
        ((folder,), USAGE, "give a prompt"),
        ((folder, ""), USAGE, "the prompt is empty"),
        ((folder, "x", "--size", "80x80"), USAGE, "this model cannot make size 80x80; give one of 96x64, 64x64, 64x96"),
        ((folder, "x", "--size", "80"), USAGE, "size '80': write width x height"),
        ((folder, "x", "--steps", 0), USAGE, "the number of steps is 0; this model takes 1 to 999"),
        ((folder, "x", "--steps", 10**6), USAGE, "the number of steps is 1000000"),
        ((folder, "x", "--steps", "many"), USAGE, "--steps"),
        ((folder, "x", "--guidance", "nan"), USAGE, "guidance is nan; it must be a number from 0 to 100"),
        ((folder, "x", "--guidance", 0, "--negative", "y"), USAGE, "the negative prompt would have no effect"),
        ((folder, "x", "-n", 10**4), USAGE, "the number of images or videos is 10000; give 1 to 100"),
        ((folder, "x", "-n", 0, "-o", there), USAGE, "the number of images or videos is 0; "),
        ((folder, "x", "--seed", -1), USAGE, "seed is -1"),
        ((folder, "x" * 600), USAGE, "the prompt has 619 tokens", "512"),
        ((folder, "x", "-o", tmp_path / "x.gif"), USAGE, "x.gif: images are written as .png, .webp, .jpg, .jpeg"),
        ((folder, "x", "-o", there), USAGE, "there.png exists already", "--force"),
        ((folder, "x", "-o", tmp_path / "no" / "x.png"), USAGE, "there is no folder"),
        ((folder, "x", "--tile", "0"), USAGE, "--tile is '0'; give auto, off, or a number of latents per side"),
        ((folder, "x", "--tile", "no"), USAGE, "--tile is 'no'"),
        ((folder, "x", "--preview", -1), USAGE, "--preview is -1"),
        ((folder, "x", "--dtype", "fp16"), USAGE, "--dtype is 'fp16'; give fp32, bf16 or auto"),
        ((broken, "x"), REFUSED, "lacks the folder vae"),
        ((hollow, "x"), REFUSED, "hollow/vae holds no *.safetensors file; fetch its weights\n"),
        (("tales", "x"), REFUSED, "tales is LlamaForCausalLM, which makes no images"),
        ((folder / "vae", "x"), REFUSED, "is AutoencoderKL, which makes no images"),
        ((folder, "--latents", tmp_path / "none"), USAGE, "none is not a file; give the saved latents of an image"),
        ((folder, "--latents", there), USAGE, "there.png has no latents of an image or a video"),
        ((folder, "--latents", of_others), USAGE, "holds latents of 3 channels, the model's have 4"),
        ((folder, "x", "--latents", of_others), USAGE, "a prompt is for generation"),
        ((folder, "--latents", of_others, "--steps", 3), USAGE, "--steps is for generation"),
    ):
        files = sorted(tmp_path.iterdir())
        assert_one_line(ridgeline("image", *arguments), code, *says)
        assert sorted(tmp_path.iterdir()) == files


def test_a_model_that_is_not_there(ridgeline: Run) -> None:
    """What is offered instead can do what was asked: whisper-base is more like `nowhere`, and draws nothing."""
    for command, asked, offered, others in (
        ("image", "nowhere", "digits, digits-ar, digits-fast)", ["digits-video", "tales", "whisper"]),
        ("image", "./nowhere", "digits, digits-ar, digits-fast)", ["tales"]),
        ("image", "of/nowhere", "digits, digits-ar, digits-fast)", ["tales"]),
        ("image", "digit", "did you mean digits", ["digits-video"]),
        ("video", "digits-vid", "did you mean digits-video?", ["digits-fast", "tales"]),
    ):
        ended = ridgeline(command, asked, "x")
        assert_one_line(ended, REFUSED, f"{asked}", offered, "give the folder of a pipeline (with a model_index.json)")
        assert not any(other in ended.err for other in others), ended.err


@pytest.mark.parametrize("command", [("run", "{}", "x"), ("show", "{}"), ("embed", "x", "--model", "{}")])
def test_commands_for_language(ridgeline: Run, folder: Path, command: tuple[str, ...]) -> None:
    """A pipeline is told where it belongs."""
    ended = ridgeline(*(word.format(folder) for word in command))
    assert_one_line(
        ended,
        REFUSED,
        "is a ZImagePipeline of several components",
        "give it to ridgeline image, ridgeline video or ridgeline plan",
    )
