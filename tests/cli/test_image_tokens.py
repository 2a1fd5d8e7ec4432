"""`ridgeline image` of a model that writes the tokens of pictures, on random weights: the files, what is said of them
before and after, and one line for what cannot be asked of it."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer
from transformers import JanusForConditionalGeneration

from cli.running import OK, REFUSED, USAGE, Run, assert_one_line
from ridgeline.core.checkpoint import open_source
from ridgeline.core.ops.pixel_grid import PixelGrid
from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.scheduler import Limits
from ridgeline.media.images.image_generator import TokenImageGenerator, load_image_generator
from ridgeline.price.devices import load_device
from ridgeline.price.price import Price
from support.janus_folders import write_janus


@pytest.fixture(autouse=True)
def not_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the machine is costs two seconds, and is no matter here."""
    monkeypatch.setattr("ridgeline.cli.image_tokens.device_at", lambda *_: load_device("h100-sxm"))


def folder_with(folder: Path, generation: dict[str, Any]) -> JanusForConditionalGeneration:
    theirs = write_janus(folder, seed=3)
    (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    return theirs


@pytest.fixture(scope="module")
def greedy(tmp_path_factory: pytest.TempPathFactory) -> tuple[JanusForConditionalGeneration, Path]:
    folder = tmp_path_factory.mktemp("greedy")
    return folder_with(folder, {"do_sample": False}), folder


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sampled")
    folder_with(folder, {})
    return folder


def pixels_of(path: Path) -> np.ndarray[Any, Any]:
    with Image.open(path) as opened:
        return np.asarray(opened)


def test_the_likeliest_picture(
    ridgeline: Run, greedy: tuple[JanusForConditionalGeneration, Path], tmp_path: Path
) -> None:
    """Transformers' tokens behind the template's prompt, a step at a time, and its pixels."""
    theirs, folder = greedy
    path = tmp_path / "seven.png"
    ended = ridgeline("image", folder, "a seven", "--seed", "4", "-o", path)
    assert (ended.code, ended.out) == (OK, f"{path}\n"), ended.err
    pipeline = Tokenizer.from_file(str(folder / "tokenizer.json"))
    begins = [pipeline.token_to_id(name) for name in ("<bos>", "<begin_of_image>")]
    text = [begins[0], *pipeline.encode("user: a seven\nassistant:").ids, begins[1]]
    drawn: list[int] = []
    with torch.no_grad():
        embedded = theirs.get_input_embeddings()(torch.tensor([text]))
        for _ in range(9):
            states = theirs.model.language_model(inputs_embeds=embedded).last_hidden_state
            drawn.append(int(theirs.model.generation_head(states[:, -1]).argmax()))
            new = theirs.prepare_embeddings_for_image_generation(torch.tensor([[drawn[-1]]]))
            embedded = torch.cat([embedded, new], dim=1)
        expected = theirs.decode_image_tokens(torch.tensor([drawn]))[0]  # lines, columns, channels
    as_bytes = ((expected / 2 + 0.5).clamp(0, 1) * 255).round().to(torch.uint8).numpy()
    assert np.abs(pixels_of(path).astype(int) - as_bytes.astype(int)).max() <= 1
    said = ended.err
    assert "one image of 6x6 pixels, seed 4" in said
    assert f"9 tokens per image, one per pass = 9 passes; prompt tokens: {len(text)}" in said
    assert "of weights and KV in total; no guidance" in said
    assert "predicted: encode " in said
    rows = said.partition("predicted    measured   ratio\n")[2].splitlines()[:3]
    assert [line[:14].strip() for line in rows] == ["encode, tokens", "decode", "all"]
    assert all(re.search(r"  x[\d,.]+$", line) for line in rows), rows
    with Image.open(path) as opened:
        kept = json.loads(opened.text["parameters"])  # type: ignore[attr-defined]
    assert kept["prompt"] == "a seven"
    assert (kept["seed"], kept["tokens"]) == (4, 9)


def test_several_pictures(ridgeline: Run, sampled: Path, tmp_path: Path) -> None:
    """Each has a seed of its own, by which it can be drawn again alone."""
    ended = ridgeline("image", sampled, "a seven", "--seed", "4", "-n", "3", "-o", tmp_path / "x.png", "--json")
    told = ended.json
    paths = [tmp_path / f"x-{number}.png" for number in (1, 2, 3)]
    assert told["files"] == list(map(str, paths))
    assert (told["tokens"], told["passes"], told["seed"]) == (9, 9, 4)
    assert told["flops"] > 0 < told["bytes"]
    assert set(told["predicted"]) == {"encode", "tokens", "decode"}
    pictures = list(map(pixels_of, paths))
    assert not np.array_equal(pictures[0], pictures[1])
    again = tmp_path / "again.webp"
    assert ridgeline("image", sampled, "a seven", "--seed", "6", "-o", again, "--quiet").err == ""
    assert np.array_equal(pixels_of(again), pictures[2])
    existing = ridgeline("image", sampled, "a seven", "--seed", "6", "-o", again)
    assert_one_line(existing, USAGE, "again.webp")


def test_refused(ridgeline: Run, greedy: tuple[JanusForConditionalGeneration, Path], tmp_path: Path) -> None:
    """What denoisers alone have; prompts that leave no room; several of one picture; folders whose parts differ."""
    _, folder = greedy
    for flags in (
        ("--steps", "4"), ("--guidance", "3"), ("--negative", "x"), ("--size", "6x6"), ("--preview", "2"),
        ("--keep-latents",), ("--latents", tmp_path / "x.latents"), ("--dtype", "bf16"), ("--tile", "off"),
    ):  # fmt: skip
        refused = ridgeline("image", folder, "a seven", *flags)
        assert_one_line(refused, USAGE, f"{flags[0]} is for diffusion pipelines", "leave it out")
    assert_one_line(ridgeline("image", folder), USAGE, "give a prompt (- reads standard input)")
    assert_one_line(ridgeline("image", folder, "x", "-o", tmp_path / "x.bmp"), USAGE, "images are written as")
    long = ridgeline("image", folder, "seven " * 30)
    assert_one_line(long, USAGE, "and an image 9, but the model's context is 128: shorten the prompt")
    several = ridgeline("image", folder, "a seven", "-n", "2")
    assert_one_line(
        several, USAGE, "sets greedy sampling, which would make the same image each time: request one image"
    )


def test_parts_that_differ(ridgeline: Run, greedy: tuple[JanusForConditionalGeneration, Path], tmp_path: Path) -> None:
    """A folder without the tokens' names."""
    _, folder = greedy
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    names = tmp_path / "tokenizer_config.json"
    said = json.loads(names.read_text(encoding="utf-8"))
    names.write_text(json.dumps(said | {"boi_token": "<picture>"}), encoding="utf-8")
    assert_one_line(ridgeline("image", tmp_path, "x"), REFUSED, "its tokenizer has no token <picture>")


def drawer(folder: Path, requests: int = 256) -> TokenImageGenerator:
    return load_image_generator(open_source(str(folder)), EngineSettings(limits=Limits(requests=requests)))


def test_the_forecast_is_of_the_steps_that_run(sampled: Path) -> None:
    """FLOPs of a pass over the prompt and of one for each further token, counted from the steps of the engine; and of
    the pixels."""
    works: list[Work] = []
    drawing = drawer(sampled)
    drawing.engine.on_step = lambda record: works.append(record.work)
    plan = drawing.plan("a seven", 3, 7)
    told = [drawn.tokens for drawn in drawing.draw(plan)]
    assert told == [3 * count for count in range(1, 10)]
    forecast = drawing.forecast(plan, load_device("h100-sxm"))
    price = drawing.loaded.price
    length = len(plan.prompt)
    assert [work.tokens for work in works] == [3 * length] + [3] * 8
    ran = [price.step(work).total_flops for work in works]
    assert forecast.costs["encode"].total_flops == pytest.approx(ran[0])
    assert forecast.costs["tokens"].total_flops == pytest.approx(sum(ran[1:]))
    decode = Price(drawing.autoencoder).step(drawing.autoencoder.decode_work(PixelGrid(1, 3, 3)))
    assert forecast.costs["decode"].total_flops == pytest.approx(3 * decode.total_flops)
    assert works[0] == Work.of([StepSegment(length, length)] * 3, drawing.loaded.model.attention_patterns)


def test_a_picture_does_not_depend_on_its_neighbours(sampled: Path) -> None:
    """However many are drawn side by side."""
    wide, narrow = drawer(sampled), drawer(sampled, requests=2)
    tokens = [
        {number: own for drawn in each.draw(each.plan("a seven", 5, 7)) for number, own in drawn.finished.items()}
        for each in (wide, narrow)
    ]
    assert tokens[0] == tokens[1]
    assert sorted(tokens[0]) == [0, 1, 2, 3, 4]


def test_leaving_early_ends_the_requests(sampled: Path) -> None:
    """Nothing is held after it."""
    drawing = drawer(sampled)
    steps = drawing.draw(drawing.plan("a seven", 2, 7))
    next(steps)
    steps.close()
    assert not drawing.engine.has_work
    assert drawing.engine.stats.held_pages == 0


@pytest.mark.parametrize(
    "command",
    [
        ("run", "{}", "a seven", "--max-tokens", 2),
        ("trace", "{}", "a seven", "--max-tokens", 2, "--repeats", 1, "--device", "h100-sxm"),
    ],
)
def test_commands_of_text_name_the_one_that_draws(ridgeline: Run, command: tuple[object, ...]) -> None:
    """A model that draws writes too, which of some means nothing: that is said, of no other model."""
    for name, draws in (("digits-ar", True), ("tales", False)):
        ended = ridgeline(*(str(word).format(name) for word in command))
        assert ended.code == OK, ended.err
        assert (f"{name} also generates images (ridgeline image)" in ended.err) == draws
