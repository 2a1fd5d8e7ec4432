"""What `digits` is trained and judged with: data, prompts, measures, models, export."""

from __future__ import annotations

import argparse
import gzip
import struct
from pathlib import Path
from random import Random

import pytest
import torch
from diffusers import ZImagePipeline
from torch import Tensor, nn
from zoo.digits.autoencoder import autoencoder
from zoo.digits.data import HELD_OUT, Digits, moved, read_digits, read_idx
from zoo.digits.distil import consistency_loss
from zoo.digits.evaluate import nearest, table
from zoo.digits.evaluate_fast import variety
from zoo.digits.export import export
from zoo.digits.measures import Bounds, slant, thickness
from zoo.digits.model import Drawer, Shape, TextShape
from zoo.digits.prompts import DIGITS, LEADS, NOUNS, TRAITS, caption, held_back, prompt, wording
from zoo.digits.tokenizer import encoded, templated, train_tokenizer
from zoo.digits.train import Taught, flow_loss, levels, load_weights
from zoo.digits.training import Training, averaged
from zoo.training import Clock

from ridgeline.media.diffusion.diffusion_request import DiffusionRequest
from ridgeline.media.diffusion.pipeline_loader import load_pipeline
from ridgeline.media.diffusion.samplers import euler, renoise
from support.checkpoints import redraw

VAE = autoencoder().eval()


def write_idx(path: Path, numbers: Tensor) -> None:
    magic = struct.pack(">HBB", 0, 8, numbers.dim())
    path.write_bytes(
        gzip.compress(magic + struct.pack(f">{numbers.dim()}I", *numbers.shape) + bytes(numbers.flatten().tolist()))
    )


def bar(width: int, lean: float = 0.0) -> Tensor:
    """An upright bar of 20 pixels, each row of which is shifted by `lean` of its height above the bottom."""
    image = torch.full((1, 1, 32, 32), -1.0)
    for row in range(6, 26):
        left = 12 + round(lean * (26 - row))
        image[..., row, left : left + width] = 1.0
    return image


# -- data -------------------------------------------------------------------------------------------------------------


def test_digits_are_divided_the_same_way_every_time(tmp_path: Path) -> None:
    """Each image says which it is, so that none is on both sides and none is lost; labels go with their images."""
    count = HELD_OUT + 30
    images = torch.zeros(count, 28, 28, dtype=torch.uint8)
    images[:, 0, 0], images[:, 27, 27] = torch.arange(count) % 256, torch.arange(count) // 256
    write_idx(tmp_path / "t10k-images-idx3-ubyte.gz", images)
    write_idx(tmp_path / "t10k-labels-idx1-ubyte.gz", (torch.arange(count) % 10).to(torch.uint8))
    (taught, held), again = read_digits(tmp_path), read_digits(tmp_path)
    assert (len(taught), len(held)) == (30, HELD_OUT)
    assert torch.equal(taught.images, again[0].images)
    assert torch.equal(held.labels, again[1].labels)
    number = [((d.images[:, 0, 2, 2] + 1 + 256 * (d.images[:, 0, 29, 29] + 1)) * 127.5).round() for d in (taught, held)]
    assert torch.equal(torch.cat(number).sort().values, torch.arange(count).float())
    assert torch.equal(torch.cat(number) % 10, torch.cat([taught.labels, held.labels]))
    assert taught.images.shape[1:] == (1, 32, 32)
    assert bool((taught.images[:, :, :2] == -1).all())


def test_another_file_is_no_idx(tmp_path: Path) -> None:
    (tmp_path / "other.gz").write_bytes(gzip.compress(b"PNG, perhaps"))
    with pytest.raises(ValueError, match=r"other\.gz begins with 0x504e472c: it is no IDX file"):
        read_idx(tmp_path / "other.gz")


def test_a_moved_image_is_the_same_digit_elsewhere() -> None:
    """Its ink hardly changes, its place does, and nothing but paper comes in from outside."""
    images = bar(3).repeat(50, 1, 1, 1)
    others = moved(images, torch.Generator().manual_seed(0))
    ink = (others + 1).sum((1, 2, 3)) / (images + 1).sum((1, 2, 3))
    assert 0.8 < float(ink.min()) < 0.95 < 1.05 < float(ink.max()) < 1.2
    assert -0.2 < float(slant(others).min()) < -0.08 < 0.08 < float(slant(others).max()) < 0.2
    assert float(others.min()) == -1
    assert bool((others[:, :, :2] == -1).all())


# -- traits -----------------------------------------------------------------------------------------------------------


def test_thickness_is_that_of_a_stroke_and_slant_where_it_leans() -> None:
    widths = [float(thickness(bar(width))) for width in (2, 3, 5)]
    assert widths == pytest.approx([2, 3, 5], rel=0.25)
    assert [float(slant(bar(3, lean))) for lean in (-0.4, 0.0, 0.4)] == pytest.approx([-0.4, 0.0, 0.4], abs=0.02)


def test_traits_are_the_outer_quarters_of_a_digits_images() -> None:
    """The widest ones are as thick as the thinnest eights, and are thick all the same: each digit has its own."""
    ones, eights = ([bar(width) for width in range(first, first + 4)] for first in (1, 4))
    sevens = [bar(3, lean) for lean in (-0.3, -0.1, 0.1, 0.3)]
    others = [digit for digit in range(10) if digit not in (1, 7, 8)]
    labels = torch.tensor([1] * 4 + [8] * 4 + [7] * 4 + others)
    digits = Digits(torch.cat([*ones, *eights, *sevens, *[bar(3)] * len(others)]), labels)
    traits = Bounds.of(digits).traits(digits)
    for first, low, high in ((0, "thin", "thick"), (4, "thin", "thick"), (8, "left", "right")):
        assert traits[first : first + 4, TRAITS.index(low)].tolist() == [True, False, False, False]
        assert traits[first : first + 4, TRAITS.index(high)].tolist() == [False, False, False, True]


# -- prompts ----------------------------------------------------------------------------------------------------------


def test_a_prompt_names_its_digit_and_its_traits() -> None:
    random = Random(0)
    for round_ in range(400):
        digit, trait = round_ % 10, TRAITS[round_ % 4]
        text = prompt(random, digit, [trait]).lower()
        words = text.replace(",", "").replace(".", "").split()
        assert [word for word in words if word in (*DIGITS, *"0123456789")][-1] in (DIGITS[digit], str(digit)), text
        said = {"thin": "thin fine light", "thick": "thick bold heavy broad", "left": "left", "right": "right"}[trait]
        assert any(word in text for word in said.split()), text
        assert " an eight" in f" {text}" or " an 8" in f" {text}" or " an " not in text, text


def test_wordings_that_are_held_back_are_not_trained_on() -> None:
    """Leads and nouns of theirs are, in other pairs."""
    random = Random(0)
    back = {(lead, noun) for lead in LEADS for noun in NOUNS if held_back(lead, noun)}
    trained = {wording(random, trained=True) for _ in range(20000)}
    assert 10 < len(back) < len(trained)
    assert not back & trained
    assert {wording(random, trained=False) for _ in range(2000)} == back
    assert {lead for lead, _ in trained} == set(LEADS)
    assert {noun for _, noun in trained} == set(NOUNS)


def test_every_prompt_fits_and_a_longer_one_is_refused() -> None:
    tokenizer, random = train_tokenizer(512), Random(1)
    prompts = [prompt(random, digit % 10, random.sample(TRAITS, 2)) for digit in range(2000)]
    tokens, own = encoded(tokenizer, ["", *prompts])
    assert tokens.shape == (2001, 32)
    assert tokenizer.decode(tokens[5][own[5]].tolist(), skip_special_tokens=False) == templated(prompts[4])
    assert int(own[0].sum()) == 8  # the template's own
    with pytest.raises(ValueError, match=r"is 3\d tokens; at most 32 are read"):
        encoded(tokenizer, ["seven", " ".join(["seven"] * 26)])


# -- training ---------------------------------------------------------------------------------------------------------


def arguments(run: Path, minutes: float) -> argparse.Namespace:
    return argparse.Namespace(
        run=run, average=4, adam_lr=0.05, muon_lr=0.05, threads=2, minutes=minutes, rows=8, validate=1000
    )


class StepClock(Clock):
    """By which every step takes a second."""

    def tick(self) -> float:
        self.seconds += 1
        return self.seconds


def test_training_goes_on_where_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plane that is fitted: what a first run leaves a second one goes on from, and a third finds no time left. The
    rate has come down to nothing in the end, and the average predicts."""
    drawn: list[int] = []

    def loss(generator: torch.Generator, rows: int) -> Tensor:
        drawn.append(generator.initial_seed())
        x = torch.randn(rows, 3, generator=generator)
        error: Tensor = model(x) - x @ torch.tensor([[1.0], [-2.0], [0.5]])
        return error.square().mean()

    monkeypatch.setattr("zoo.digits.training.Clock", StepClock)
    torch.manual_seed(0)
    for seconds in (40, 200, 200):
        model = nn.Linear(3, 1)
        args = arguments(tmp_path, seconds / 60)
        training = Training(model, args, [model.weight])
        training.fit(loss, lambda average: {}, args)
        assert training.progress.step == seconds
    assert len(set(drawn)) == len(drawn) == 2 * 200  # no batch twice, over all starts
    assert training.optimizers["adam"].param_groups[0]["lr"] < 0.02 * args.adam_lr
    found = averaged(nn.Linear(3, 1), tmp_path)
    assert found.weight.tolist()[0] == pytest.approx([1.0, -2.0, 0.5], abs=0.1)  # type: ignore[union-attr,operator]


def taught() -> Taught:
    digits = Digits(torch.cat([bar(width) for width in range(1, 11)]), torch.arange(10))
    return Taught(digits, Bounds.of(digits), VAE, train_tokenizer(512))


def test_the_loss_is_nothing_for_who_knows_the_velocity() -> None:
    """Of latents that are all the same, whose noise is known from what is seen of it."""
    latents, tokens, own = taught().batch(6, torch.Generator().manual_seed(0))
    same = latents[:1].expand(6, -1, -1, -1)

    class Knows(nn.Module):
        def forward(self, x: Tensor, t: Tensor, tokens: Tensor, own: Tensor) -> Tensor:
            return (x - same) / t[:, None, None, None]

    generator = torch.Generator().manual_seed(1)
    assert float(flow_loss(Knows(), (same, tokens, own), generator)) < 1e-6
    t = levels(2000, generator)
    assert 0 < float(t.min()) < 0.01 < 0.99 < float(t.max()) < 1


def test_a_student_that_guesses_what_the_teacher_comes_to_is_told_to_stay() -> None:
    """A teacher whose guided velocity is that of a straight line leads every guess to the same picture."""
    drawer = Drawer(Shape(), TextShape())
    latents, tokens, own = taught().batch(6, torch.Generator().manual_seed(0))
    picture = latents[:1]

    class Straight(nn.Module):
        def forward(self, x: Tensor, time: Tensor, states: Tensor, own: Tensor) -> Tensor:
            return (picture - x) / (1 - time).clamp(min=1e-6)[:, None, None, None]

    drawer.transformer = Straight()  # type: ignore[assignment]
    empty = encoded(train_tokenizer(512), [""])
    batch, generator = (picture.expand(6, -1, -1, -1), tokens, own), torch.Generator().manual_seed(2)
    assert float(consistency_loss(Straight(), drawer, batch, empty, generator)) < 1e-6  # type: ignore[arg-type]
    other = Drawer(Shape(), TextShape()).transformer  # which says that there is no noise
    loss = consistency_loss(other, drawer, batch, empty, generator)
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(loss) > 0.01
    assert all(p.grad is None for p in drawer.parameters())
    assert float(other.all_final_layer["2-1"].linear.weight.grad.abs().sum()) > 0  # type: ignore[union-attr]


def test_a_step_of_training_trains_all_but_what_nothing_runs() -> None:
    drawer = Drawer(Shape(), TextShape())
    redraw(drawer, seed=0)
    drawer.requires_grad_(True)
    generator = torch.Generator().manual_seed(0)
    flow_loss(drawer, taught().batch(4, generator), generator).backward()  # type: ignore[no-untyped-call]
    idle = [name for name, p in drawer.named_parameters() if p.grad is None or not p.grad.abs().sum()]
    assert idle == ["transformer.x_pad_token"]


# -- export -----------------------------------------------------------------------------------------------------------


def test_an_exported_folder_is_the_pipeline_that_was_trained(tmp_path: Path) -> None:
    """diffusers' class, given its folder, has the states and the velocities of the models in training, and these start
    again from it. Weights are redrawn: of those in training some begin at zero."""
    tokenizer, drawer = train_tokenizer(512), Drawer(Shape(), TextShape())
    redraw(drawer, seed=5)
    for parameter in drawer.parameters():
        parameter.data = parameter.to(torch.bfloat16).float()
    export(drawer, VAE, tokenizer, tmp_path)
    pipeline = ZImagePipeline.from_pretrained(tmp_path, torch_dtype=torch.float32)
    texts = ["a handwritten seven", "7"]
    tokens, own = encoded(tokenizer, texts)
    latents, t = torch.randn(2, 4, 16, 16, generator=torch.Generator().manual_seed(0)), torch.tensor([0.9, 0.3])
    with torch.inference_mode():
        states = drawer.text_encoder(tokens)
        theirs = pipeline._encode_prompt(list(texts), "cpu", max_sequence_length=32)
        velocity = drawer(latents, t, tokens, own)
        negated = pipeline.transformer(list(latents.unsqueeze(2)), 1 - t, theirs, return_dict=False)[0]
    for row in range(2):
        assert torch.allclose(states[row][own[row]], theirs[row], atol=1e-5 * float(states.abs().max()))
    expected = -torch.stack(list(negated)).squeeze(2)
    assert float((velocity - expected).abs().max() / expected.abs().max()) < 1e-4
    again = Drawer(Shape(), TextShape())
    load_weights(again, tmp_path)
    assert all(
        torch.equal(a, b) for a, b in zip(again.state_dict().values(), drawer.state_dict().values(), strict=True)
    )


def test_a_distilled_pipeline_says_how_it_is_to_be_asked(tmp_path: Path) -> None:
    """Few steps, no guidance, and a sampler whose guess is final; all else as its teacher's."""
    tokenizer, drawer = train_tokenizer(512), Drawer(Shape(), TextShape())
    export(drawer, VAE, tokenizer, tmp_path / "teacher")
    export(drawer, VAE, tokenizer, tmp_path / "fast", fast=True)
    both = [load_pipeline(str(tmp_path / name), threads=1) for name in ("teacher", "fast")]
    plans = [pipeline.plan(DiffusionRequest("a seven", seed=0)) for pipeline in both]
    assert [(plan.schedule.steps, plan.passes) for plan in plans] == [(20, 40), (4, 4)]
    assert [pipeline.scheduler.sampler for pipeline in both] == [euler, renoise]
    files = [
        {path.relative_to(tmp_path / name): path.read_bytes() for path in (tmp_path / name).rglob("*.*")}
        for name in ("teacher", "fast")
    ]
    assert {str(path) for path in files[0] if files[0][path] != files[1][path]} == {
        "generation_config.json",
        "scheduler/scheduler_config.json",
    }


def test_the_nearest_is_found_and_a_table_is_one() -> None:
    images = torch.cat([bar(3), bar(4)])
    others = torch.cat([bar(8), bar(3), bar(6)])
    assert nearest(images[:1], others) == 0
    assert nearest(images[1:], others) == pytest.approx((20 * 1 * 2**2 / 1024) ** 0.5)
    assert table("steps", (50, 4), {"read right": (0.98, 0.5)}).splitlines() == [
        "| steps | 50 | 4 |",
        "| --- | --- | --- |",
        "| read right | 98.0 % | 50.0 % |",
    ]


def test_captions_repeat_for_a_seed() -> None:
    first, again = ([caption(Random(seed), 3, ["thin"]) for seed in range(50)] for _ in range(2))
    assert first == again
    assert len(set(first)) > 30


def test_variety_is_the_mean_distance_within_groups() -> None:
    """Of three images, each pair counts as much, and pairs of different groups do not."""
    groups = torch.stack([torch.zeros(3, 1, 2, 2), torch.full((3, 1, 2, 2), 9.0)])
    assert variety(groups) == 0
    groups[0, 1] += 0.5
    assert variety(groups) == pytest.approx((0.5 + 0.5 + 0) / 3 / 2)
