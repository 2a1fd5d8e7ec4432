"""The built-in `digits-ar`: transformers writes the same tokens from its folder, and prompts act."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import JanusForConditionalGeneration
from zoo.digits.measures import thickness

from ridgeline.core.checkpoint.source import BUILTIN, open_source
from ridgeline.media.images.image_generator import TokenImageGenerator, load_image_generator
from support.januses import their_tokens

DIGITS = BUILTIN / "digits-ar"
FILE = "model.safetensors"


@pytest.fixture(scope="module")
def drawer() -> TokenImageGenerator:
    return load_image_generator(open_source("digits-ar"))


def written(drawer: TokenImageGenerator, prompt: str, images: int = 1) -> list[list[int]]:
    """The tokens of pictures, by their seeds from 0 on."""
    finished: dict[int, list[int]] = {}
    for step in drawer.draw(drawer.plan(prompt, images, seed=0)):
        finished |= step.finished
    return [finished[image] for image in range(images)]


def drawn(drawer: TokenImageGenerator, prompt: str) -> Tensor:
    return torch.stack([drawer.decode(tokens) for tokens in written(drawer, prompt, 8)]).clamp(-1, 1)


def test_transformers_writes_the_same_tokens_from_the_folder(tmp_path: Path) -> None:
    """Prompt, decoder and autoencoder, with weights in fp32, in which both compute alike; the likeliest tokens."""
    for path in (path for path in DIGITS.iterdir() if path.suffix == ".json"):
        (tmp_path / path.name).write_bytes(path.read_bytes().replace(b'"bfloat16"', b'"float32"'))
    save_file(
        {name: value.float() for name, value in load_file(DIGITS / FILE).items()}, tmp_path / FILE, {"format": "pt"}
    )
    theirs = JanusForConditionalGeneration.from_pretrained(tmp_path, dtype=torch.float32).eval()
    ours = load_image_generator(open_source(str(tmp_path)))
    ours.params = replace(ours.params, temperature=0.0)
    prompt = "please draw a thin three"
    ids = [token - theirs.config.vq_config.num_embeddings for token in ours.plan(prompt, seed=0).prompt]
    (tokens,) = written(ours, prompt)
    assert tokens == their_tokens(theirs, ids, 64)
    assert len(set(tokens)) > 10
    with torch.no_grad():
        expected = theirs.decode_image_tokens(torch.tensor([tokens]))[0].permute(2, 0, 1)
    assert float((ours.decode(tokens) - expected).abs().max() / expected.abs().max()) < 1e-5


def test_a_prompt_is_followed(drawer: TokenImageGenerator) -> None:
    """By what is measured on pixels, over eight images: a one is a stroke that is higher than wide, a zero has paper in
    its middle; strokes are as thick as was asked for."""
    ones, zeros = drawn(drawer, "a handwritten one"), drawn(drawer, "please draw a 0")
    assert float((ones > 0).sum()) < 0.6 * float((zeros > 0).sum())
    assert float(ones[..., 14:18, 12:20].amax(-1).mean()) > 0.5
    assert float(zeros[..., 14:18, 15:17].mean()) < -0.5
    thin, thick = (thickness(drawn(drawer, f"a {trait} handwritten three")).mean() for trait in ("thin", "thick"))
    assert float(thick) > 1.1 * float(thin)


def test_a_picture_is_its_seed_s_and_not_its_neighbours(drawer: TokenImageGenerator) -> None:
    """Sampled as the folder says; one picture alone is the first of two."""
    said = json.loads((DIGITS / "generation_config.json").read_text())
    assert (drawer.params.temperature, drawer.params.top_p) == (said["temperature"], said["top_p"])
    both = written(drawer, "a seven", 2)
    assert both[0] == written(drawer, "a seven")[0]
    assert both[0] != both[1]
    assert drawer.pixels == 32


def test_a_prompt_that_leaves_no_room_is_refused(drawer: TokenImageGenerator) -> None:
    with pytest.raises(ValueError, match=r"an image 64, but the model's context is 128: shorten the prompt"):
        drawer.plan("a seven " * 40)


def test_it_is_as_small_as_it_says() -> None:
    assert (DIGITS / FILE).stat().st_size < 3_000_000
