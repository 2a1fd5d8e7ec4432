"""What `digits-video` is trained and judged with: clips, measures, prompts, model, export."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
import torch
from diffusers import WanTransformer3DModel
from torch import Tensor, nn
from transformers import UMT5EncoderModel
from zoo.digits.autoencoder import autoencoder
from zoo.digits.data import Digits
from zoo.digits.prompts import DIGITS
from zoo.digits.train import flow_loss, levels
from zoo.digits_video.data import DIRECTIONS, FRAMES, SPEED, clips, smaller
from zoo.digits_video.evaluate import Asked, asked, right
from zoo.digits_video.export import export, load_weights
from zoo.digits_video.measures import centred, centres, directions, shown, speeds, unsteady
from zoo.digits_video.model import TEXT_SHAPE, ClipDrawer, Shape, padded
from zoo.digits_video.prompts import TO, caption, kept, prompt
from zoo.digits_video.tokenizer import encoded, tokenizer_of_prompts
from zoo.digits_video.train import Taught

from ridgeline.media.diffusion.diffusion_request import DiffusionRequest
from ridgeline.media.diffusion.pipeline_loader import load_pipeline
from support.checkpoints import redraw

VAE = autoencoder().eval()
TOKENIZER = tokenizer_of_prompts(512)


def square(side: int = 8) -> Tensor:
    """An image of a square of ink in the middle [1, 1, 32, 32]."""
    image, first = torch.full((1, 1, 32, 32), -1.0), 16 - side // 2
    image[..., first : first + side, first : first + side] = 1.0
    return image


# -- clips ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_clip_is_its_image_elsewhere(direction: str) -> None:
    """From the middle on; each frame is the next one, moved by as much."""
    down, across = (SPEED * step for step in DIRECTIONS[direction])
    (clip,) = clips(square(), [direction])
    assert clip.shape == (FRAMES, 1, 32, 32)
    assert torch.equal(clip[0], smaller(square())[0])
    for one, after in pairwise(clip):
        assert torch.allclose(one.roll((down, across), (1, 2)), after, atol=1e-5)


def test_what_moves_is_measured() -> None:
    """Where to and how fast, of all four; a clip that stands, or trembles, goes nowhere."""
    moving = clips(square().repeat(4, 1, 1, 1), list(DIRECTIONS))
    assert directions(moving) == list(DIRECTIONS)
    expected = SPEED * torch.tensor(list(DIRECTIONS.values()), dtype=torch.float32)
    assert torch.allclose(speeds(moving), expected, atol=1e-4)
    assert float(unsteady(moving).max()) < 1e-4
    assert float(centres(moving)[:, 0].abs().max()) < 1e-4
    halted = torch.cat([moving[:, :5], moving[:, 4:5].repeat(1, 4, 1, 1, 1)], 1)
    assert float(unsteady(halted).min()) > 0.5
    still = moving[:, 4:5].repeat(1, FRAMES, 1, 1, 1)
    trembling = torch.stack([moving[:, 3 + n % 2] for n in range(FRAMES)], 1)
    assert directions(torch.cat([still, trembling])) == [None] * 8
    grey = (moving + 0.2).clamp(max=1)  # paper that is not quite white
    assert directions(grey) == list(DIRECTIONS)


def test_a_reader_sees_frames_as_pictures_of_digits() -> None:
    """Large again and in the middle, wherever they were; most frames decide."""
    images = torch.cat([square(8), square(16)])
    moving = clips(images, ["left", "down"])
    back = centred(moving).unflatten(0, (2, FRAMES))
    assert float((back - images[:, None]).abs().mean()) < 0.06

    class Measures(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            large = ((images > 0).float().sum((1, 2, 3)) > 150).float()
            return torch.stack([2 - large, 1 + large], 1)

    assert shown(Measures(), moving).tolist() == [0, 1]
    mixed = moving.clone()
    mixed[0, :4] = moving[1, 2:6]
    assert shown(Measures(), mixed).tolist() == [0, 1]
    mixed[0, :5] = moving[1, 2:7]
    assert shown(Measures(), mixed).tolist() == [1, 1]


# -- prompts ----------------------------------------------------------------------------------------------------------


def test_a_prompt_names_its_digit_and_where_it_moves() -> None:
    random = Random(0)
    for number in range(400):
        digit, direction = number % 10, list(DIRECTIONS)[number % 4]
        text = prompt(random, digit, direction, trained=number % 3 > 0).lower()
        said = [word for word in text.replace(",", "").replace(".", "").split() if word in (*DIGITS, *"0123456789")]
        assert said[-1] in (DIGITS[digit], str(digit)), text
        ends = [way for way, words in TO.items() if any(text.rstrip(".").endswith(f" {to}") for to in words)]
        assert ends == [direction], text


def test_wordings_that_are_held_back_are_not_trained_on() -> None:
    assert kept("", "{a}{name}", " moving {to}") is False
    random, seen = Random(0), {False: set[str](), True: set[str]()}
    for _ in range(4000):
        for trained, texts in seen.items():
            texts.add(prompt(random, 7, "left", trained=trained).lower().rstrip("."))
    assert not seen[False] & seen[True]
    assert len(seen[True]) > 1000
    assert len(seen[False]) > 300


def test_every_prompt_fits_and_a_longer_one_is_refused() -> None:
    random = Random(1)
    prompts = [caption(random, number % 10, list(DIRECTIONS)[number % 4]) for number in range(2000)]
    tokens, own = encoded(TOKENIZER, ["", *prompts])
    assert tokens.shape == own.shape == (2001, 32)
    assert TOKENIZER.decode(tokens[5][own[5]].tolist()) == prompts[4]
    assert own[0].sum() == 1
    with pytest.raises(ValueError, match="at most 32 are trained on"):
        encoded(TOKENIZER, ["seven", " ".join(["left"] * 40)])


# -- training ---------------------------------------------------------------------------------------------------------


def test_a_batch_is_clips_as_the_autoencoder_has_them() -> None:
    """Frame by frame the latents of pictures, the channels before the frames."""
    digits = Digits(square(12).repeat(4, 1, 1, 1), torch.arange(4))
    latents, tokens, own = Taught(digits, VAE, TOKENIZER).batch(4, torch.Generator().manual_seed(0))
    assert latents.shape == (4, 4, FRAMES, 16, 16)
    assert tokens.shape == own.shape
    with torch.no_grad():
        seen = VAE.decode(latents.transpose(1, 2).flatten(0, 1) / VAE.config.scaling_factor).sample
        middle = VAE.decode(VAE.encode(smaller(digits.images[:1])).latent_dist.mean).sample
    # Those at odd places were not moved first, so that all are alike at the beginning.
    for number in (1, 3):
        assert torch.allclose(seen[number * FRAMES], middle[0], atol=1e-4)


def test_levels_are_shifted_to_noise() -> None:
    generator = torch.Generator().manual_seed(0)
    plain, shifted = levels(4000, generator), levels(4000, generator, 3.0)
    assert 0.45 < float(plain.median()) < 0.55
    assert 0.72 < float(shifted.median()) < 0.78
    assert float(shifted.max()) < 1


def test_a_text_is_looked_at_from_the_first_step_on() -> None:
    """Though padding is all but a few of 512 tokens: half of the attention and more is the text's own."""
    torch.manual_seed(0)
    drawer, shares = ClipDrawer(Shape(), TEXT_SHAPE), list[float]()
    tokens, own = encoded(TOKENIZER, ["a seven moving left", "7"])
    with torch.no_grad():
        text, bias = padded(drawer.text_encoder(tokens, own), own)
        text = drawer.transformer.condition_embedder.text(text)
        assert not text[:, -1].any()
        for block in drawer.transformer.blocks:
            attention = block.attn2
            q, k = attention.norm_q(attention.to_q(torch.randn(2, 50, 128))), attention.norm_k(attention.to_k(text))
            q, k = (x.unflatten(-1, (attention.heads, -1)).transpose(1, 2) for x in (q, k))
            weights = (q @ k.mT / q.shape[-1] ** 0.5 + bias).softmax(-1)
            shares.append(float(1 - weights[..., -1].mean()))
    assert min(shares) > 0.5


def test_a_step_of_training_trains_everything() -> None:
    """Biases of keys too, which their norm makes matter."""
    drawer = ClipDrawer(Shape(), TEXT_SHAPE)
    redraw(drawer, seed=0)
    drawer.requires_grad_(True)
    digits, generator = Digits(square(12).repeat(4, 1, 1, 1), torch.arange(4)), torch.Generator().manual_seed(0)
    batch = Taught(digits, VAE, TOKENIZER).batch(4, generator)
    flow_loss(drawer, batch, generator).backward()  # type: ignore[no-untyped-call]
    idle = [name for name, p in drawer.named_parameters() if p.grad is None or not p.grad.abs().sum()]
    assert not idle


# -- evaluation --------------------------------------------------------------------------------------------------------


def test_every_digit_is_asked_to_every_side() -> None:
    """Once each of forty, in wordings of one sort."""
    texts = asked(40, trained=False)
    assert len({(text.digit, text.direction) for text in texts}) == 40
    assert texts == asked(40, trained=False)
    assert not {text.prompt for text in texts} & {text.prompt for text in asked(40, trained=True)}


def test_what_is_right_is_counted_apart() -> None:
    """A reader that finds a one everywhere, and clips that all move to the left."""

    class Ones(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return nn.functional.one_hot(torch.ones(len(images), dtype=torch.int64), 10).float()

    found = clips(square().repeat(4, 1, 1, 1), ["left"] * 4)
    texts = [Asked(1, "left", ""), Asked(1, "up", ""), Asked(2, "right", ""), Asked(1, "left", "")]
    assert right(Ones(), texts, found) == (0.75, 0.5)


# -- export -----------------------------------------------------------------------------------------------------------


def test_an_exported_folder_is_the_pipeline_that_was_trained(tmp_path: Path) -> None:
    """diffusers' and transformers' classes, given its folder, have the states and the velocities of the models in
    training, padding and all; these start again from it; and it draws."""
    drawer = ClipDrawer(Shape(), TEXT_SHAPE)
    redraw(drawer, seed=5)
    for parameter in drawer.parameters():
        parameter.data = parameter.to(torch.bfloat16).float()
    export(drawer, VAE, TOKENIZER, tmp_path)
    texts = ["a seven moving left", "7"]
    tokens, own = encoded(TOKENIZER, texts)
    latents, t = torch.randn(2, 4, 9, 16, 16, generator=torch.Generator().manual_seed(0)), torch.tensor([0.9, 0.3])
    encoder = UMT5EncoderModel.from_pretrained(tmp_path / "text_encoder", torch_dtype=torch.float32)
    denoiser = WanTransformer3DModel.from_pretrained(tmp_path / "transformer", torch_dtype=torch.float32)
    with torch.inference_mode():
        velocity = drawer(latents, t, tokens, own)
        states = encoder(tokens, own.long()).last_hidden_state * own[..., None]
        ours = drawer.text_encoder(tokens, own) * own[..., None]
        padded = nn.functional.pad(states, (0, 0, 0, 512 - states.shape[1]))
        expected = denoiser(latents, 1000 * t, padded, return_dict=False)[0]
    assert float((ours - states).abs().max() / states.abs().max()) < 1e-4
    assert float((velocity - expected).abs().max() / expected.abs().max()) < 1e-4
    again = ClipDrawer(Shape(), TEXT_SHAPE)
    load_weights(again, tmp_path)
    for name, value in drawer.state_dict().items():
        assert torch.allclose(again.state_dict()[name], value, rtol=1e-6), name
    pipeline = load_pipeline(str(tmp_path), threads=1)
    drawn = pipeline.draw(DiffusionRequest(texts[0], steps=2, seed=0))
    assert drawn.shape == (1, 1, FRAMES, 32, 32)
    with pytest.raises(ValueError, match="this model cannot make 10 frames: it makes 1 to 9 frames"):
        pipeline.plan(DiffusionRequest("x", frames=10))
