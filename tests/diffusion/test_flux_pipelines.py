"""FLUX.2-klein's and FLUX.1's folders against diffusers' pipelines of them: texts, latents and pixels, in fp32 on small
random weights."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import Flux2KleinPipeline, FluxPipeline
from torch import Tensor

from diffusion.schedulers import relative
from ridgeline.core.models import ModelRefused
from ridgeline.core.models.common.mmdit import MMDiT
from ridgeline.core.ops.padded_text import padded_work
from ridgeline.media.diffusion.diffusion_request import DiffusionRequest
from ridgeline.media.diffusion.forecast import Forecaster
from ridgeline.media.diffusion.geometry import Size
from ridgeline.media.diffusion.guidance import Convention
from ridgeline.media.diffusion.pipeline import Pipeline
from ridgeline.media.diffusion.pipeline_loader import load_pipeline
from ridgeline.price.devices import load_device
from ridgeline.price.price import Price
from support.flux_pipelines import CLIP_TOKENS, CLIP_WIDTH, flux, klein
from support.pipelines import generators

TOLERANCE = 1e-5
PROMPT = "a cat, naïve — at night"


@dataclass(frozen=True)
class Subject:
    """Diffusers' pipeline, and ours of the folder that it wrote."""

    folder: Path
    theirs: Any
    ours: Pipeline

    def expected(self, request: DiffusionRequest, **said: Any) -> tuple[Tensor, Tensor]:
        """Their latents and pixels of a request. said: what is said to their pipeline alone."""
        assert request.size is not None
        assert request.seed is not None
        given = {
            "height": request.size.height,
            "width": request.size.width,
            "num_inference_steps": request.steps,
            "guidance_scale": 1.0 if request.guidance is None else request.guidance,
            **said,
        }
        prompts, made = [request.prompt] * request.images, []
        for output in ("latent", "pt"):
            seeded = generators(request.seed, request.images)
            made.append(self.theirs(prompt=prompts, output_type=output, generator=seeded, **given).images)
        return made[0], made[1]

    def drawn(self, request: DiffusionRequest) -> tuple[Tensor, Tensor]:
        """Our latents, and pixels cut to 0 to 1."""
        plan = self.ours.plan(request)
        steps = list(self.ours.denoise(plan, self.ours.encode(plan)))
        latents = torch.cat([step.latents for step in steps if step.last])
        return latents, (self.ours.decode(latents) / 2 + 0.5).clamp(0, 1)

    def both(self, request: DiffusionRequest, **said: Any) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Ours and theirs."""
        return self.drawn(request), self.expected(request, **said)


def subject_of(folder: Path, theirs: Any) -> Subject:
    return Subject(folder, theirs, load_pipeline(str(folder), threads=1))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """klein's, not distilled."""
    folder = tmp_path_factory.mktemp("klein-base")
    return subject_of(folder, klein(folder, distilled=False))


@pytest.fixture(scope="module")
def distilled(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    folder = tmp_path_factory.mktemp("klein")
    return subject_of(folder, klein(folder, distilled=True))


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    folder = tmp_path_factory.mktemp("dev")
    return subject_of(folder, flux(folder, dev=True))


@pytest.fixture(scope="module")
def schnell(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    folder = tmp_path_factory.mktemp("schnell")
    return subject_of(folder, flux(folder, dev=False))


# -- FLUX.2-klein -----------------------------------------------------------------------------------------------------


def packed(pipeline: Flux2KleinPipeline, latents: Tensor) -> Tensor:
    """What the reference gives as latents, as the denoiser had them: it unpacks them first."""
    spread = torch.sqrt(pipeline.vae.bn.running_var + pipeline.vae.config.batch_norm_eps).view(1, -1, 1, 1)
    mean = pipeline.vae.bn.running_mean.view(1, -1, 1, 1)
    return (Flux2KleinPipeline._patchify_latents(latents) - mean) / spread


@pytest.mark.parametrize(
    "request_",
    [
        DiffusionRequest(PROMPT, None, Size(96, 64), 3, 3.0, 7, 2),
        DiffusionRequest("", None, Size(64, 96), 2, 1.0, 2**40, 1),
        DiffusionRequest("x" * 400, None, Size(64, 64), 1, 4.0, 0, 1),
    ],
    ids=["guidance, two images", "no guidance, no prompt", "a long prompt"],
)
def test_klein(base: Subject, request_: DiffusionRequest) -> None:
    """Its shift by tokens and steps, an empty text in the second pass."""
    (latents, pixels), (theirs, picture) = base.both(request_)
    assert relative(latents, packed(base.theirs, theirs)) < TOLERANCE
    assert relative(pixels, picture) < TOLERANCE


def test_distilled_klein(distilled: Subject) -> None:
    """One pass a step, whatever scale the reference is told, and four steps where nobody says."""
    request = DiffusionRequest(PROMPT, None, Size(96, 64), 2, None, 5, 2)
    (latents, pixels), (theirs, picture) = distilled.both(request, guidance_scale=4.0)
    assert relative(latents, packed(distilled.theirs, theirs)) < TOLERANCE
    assert relative(pixels, picture) < TOLERANCE
    plan = distilled.ours.plan(DiffusionRequest("a cat"))
    assert (plan.schedule.steps, plan.passes, plan.guidance.negative) == (4, 4, None)
    with pytest.raises(
        ValueError, match="guidance is 3, but this model was distilled to need none: leave guidance out"
    ):
        distilled.ours.plan(DiffusionRequest("a cat", guidance=3.0))


@pytest.mark.parametrize("text", [PROMPT, "", "x" * 460])
def test_klein_reads_texts(base: Subject, text: str) -> None:
    """States after three layers, with thinking off, those of padding among them."""
    (expected,), _ = base.theirs.encode_prompt(text)
    ids = base.ours.encoder.ids(text)
    assert len(ids) == 512
    assert relative(base.ours.encoder.encode(ids), expected) < TOLERANCE
    assert base.ours.encoder.width == expected.shape[1] == 36


def test_a_text_that_is_too_long_is_refused(base: Subject, dev: Subject) -> None:
    """Padding is no part of it."""
    for subject in (base, dev):
        with pytest.raises(
            ValueError, match=r"the prompt has \d+ tokens.* the text encoder reads at most 512; shorten it"
        ):
            subject.ours.plan(DiffusionRequest("x" * 520))


# -- FLUX.1 -----------------------------------------------------------------------------------------------------------


def unpacked(request: DiffusionRequest, latents: Tensor) -> Tensor:
    """What the reference gives as latents, as its VAE reads them."""
    assert request.size is not None
    return FluxPipeline._unpack_latents(latents, request.size.height, request.size.width, 4)


@pytest.mark.parametrize(
    "request_",
    [
        DiffusionRequest(PROMPT, None, Size(96, 64), 3, 3.5, 7, 2),
        DiffusionRequest("", None, Size(64, 96), 2, 0.0, 1, 1),
    ],
    ids=["two images", "a scale of 0"],
)
def test_dev(dev: Subject, request_: DiffusionRequest) -> None:
    """The scale as an input of the denoiser, the shift by tokens."""
    (latents, pixels), (theirs, picture) = dev.both(request_)
    assert relative(latents, unpacked(request_, theirs)) < TOLERANCE
    assert relative(pixels, picture) < TOLERANCE
    assert dev.ours.plan(request_).passes == request_.steps
    with pytest.raises(ValueError, match="the negative prompt would have no effect"):
        dev.ours.plan(DiffusionRequest("a cat", "a dog"))


def test_schnell(schnell: Subject) -> None:
    """Texts of 256 tokens, no guidance, no shift, four steps."""
    request = DiffusionRequest(PROMPT * 3, None, Size(96, 64), None, None, 7, 2)
    (latents, pixels), (theirs, picture) = schnell.both(request, num_inference_steps=4, max_sequence_length=256)
    assert relative(latents, unpacked(request, theirs)) < TOLERANCE
    assert relative(pixels, picture) < TOLERANCE
    assert schnell.ours.kind.convention is Convention.NONE
    assert len(schnell.ours.encoder.ids("a cat")) == 256


@pytest.mark.parametrize("text", [PROMPT, "", "x" * 70, "x" * 76, "y" * 90])
def test_flux_reads_texts(dev: Subject, text: str) -> None:
    """T5's states of a text and its padding, and CLIP's vector, of a text that is cut where it has no more places."""
    states, pooled, _ = dev.theirs.encode_prompt(text)
    assert relative(dev.ours.encoder.encode(dev.ours.encoder.ids(text)), states[0]) < TOLERANCE
    vector = dev.ours.encoder.pooled(text)
    assert vector is not None
    assert relative(vector, pooled[0]) < TOLERANCE
    if len(text) > CLIP_TOKENS:
        assert torch.equal(vector, dev.ours.encoder.pooled(text + "z"))  # type: ignore[arg-type]


def test_a_vector_is_made_once(dev: Subject) -> None:
    """It is kept as states are."""
    read: list[int] = []
    dev.ours.encoder.models[1].get_submodule("text_model").register_forward_hook(lambda *_: read.append(1))
    request = DiffusionRequest("a cat that is new", None, Size(64, 64), 2, 2.0, 1, 2)
    assert torch.equal(dev.ours.draw(request), dev.ours.draw(request))
    assert len(read) == 1


def test_the_vector_and_the_scale_act(dev: Subject) -> None:
    """Another one of either is another picture."""
    (one, _), (other, _) = (
        dev.drawn(DiffusionRequest("a cat", None, Size(64, 64), 2, scale, 1)) for scale in (1.0, 5.0)
    )
    assert relative(one, other) > 1e-3
    assert isinstance(dev.ours.denoiser, MMDiT)
    plan = dev.ours.plan(DiffusionRequest("a cat", None, Size(64, 64), 2, 1.0, 1))
    texts = dev.ours.encode(plan)
    with torch.inference_mode():
        dev.ours.texts.pooled("a cat").mul_(-1)  # type: ignore[union-attr]
    *_, last = dev.ours.denoise(plan, texts)
    assert relative(one, last.latents) > 1e-3


# -- folders ----------------------------------------------------------------------------------------------------------


def test_parts_of_two_pipelines(dev: Subject, tmp_path: Path) -> None:
    """A CLIP whose vector the transformer does not read; a T5 that is none; texts without a token to pad them."""
    folder = tmp_path / "copy"
    shutil.copytree(dev.folder, folder)
    index = json.loads((folder / "model_index.json").read_text(encoding="utf-8"))
    for part, other, why in (
        ("text_encoder_2", ["transformers", "T5ForConditionalGeneration"], "has a T5ForConditionalGeneration, which"),
        ("text_encoder_2", None, "does not list text_encoder_2, which a FluxPipeline needs"),
    ):
        changed = {name: value for name, value in {**index, part: other}.items() if value}
        (folder / "model_index.json").write_text(json.dumps(changed), encoding="utf-8")
        with pytest.raises(ModelRefused, match=why):
            load_pipeline(str(folder), threads=1)
    (folder / "model_index.json").write_text(json.dumps(index), encoding="utf-8")
    config = folder / "transformer" / "config.json"
    stated = json.loads(config.read_text(encoding="utf-8"))
    assert stated["pooled_projection_dim"] == CLIP_WIDTH
    shutil.copytree(dev.folder / "transformer", tmp_path / "kept")
    theirs = type(dev.theirs.transformer)(**{**dev.theirs.transformer.config, "pooled_projection_dim": CLIP_WIDTH + 1})
    theirs.save_pretrained(folder / "transformer")
    with pytest.raises(
        ModelRefused, match="the pooled text vector has 20 numbers, but the transformer reads 21: the parts"
    ):
        load_pipeline(str(folder), threads=1)
    shutil.rmtree(folder / "transformer")
    shutil.copytree(tmp_path / "kept", folder / "transformer")
    for file in (folder / "tokenizer_2").glob("*.json"):
        text = file.read_text(encoding="utf-8")
        if file.name != "tokenizer.json":
            file.write_text(text.replace("pad_token", "former_pad"), encoding="utf-8")
    with pytest.raises(ModelRefused, match="states no pad_token, with which this pipeline pads texts"):
        load_pipeline(str(folder), threads=1)


def test_progress_is_of_all_parts(dev: Subject) -> None:
    """Both text encoders among them, one after the other."""
    told: list[tuple[int, int]] = []
    load_pipeline(str(dev.folder), threads=1, progress=lambda done, every: told.append((done, every)))
    assert len({every for _, every in told}) == 1
    done = [each for each, _ in told]
    assert done == sorted(done)
    assert told[-1][0] == told[-1][1]


def test_texts_are_priced_as_they_are_read(base: Subject, dev: Subject) -> None:
    """klein's padding looks at the text alone, the shorter the less there is to do; T5 reads all of its padding, CLIP
    the prompt as it is, once."""
    card = load_device("h100-sxm")
    for ours, request in ((base.ours, DiffusionRequest("a cat", guidance=3.0)), (dev.ours, DiffusionRequest("a cat"))):
        plan, encoder = ours.plan(request), ours.encoder
        first, *others = map(Price, encoder.models)
        reads = [first.price_step(card, encoder.work(ids)) for ids in plan.token_ids]
        count = len(encoder.pooled_ids("a cat")) if others else 0
        reads += [other.price_step(card, padded_work(other.reaches, count, count)) for other in others]
        found = Forecaster(ours, card).seconds(plan, None)["encode"]
        assert found == pytest.approx(sum(read.expected for read in reads))
    short, long, padded = (base.ours.encoder.ids(text) for text in ("a cat", "a cat " * 20, ""))
    flops = [Price(base.ours.encoder.models[0]).step(base.ours.encoder.work(ids)).total_flops for ids in (short, long)]
    assert len(short) == len(long) == len(padded)
    assert flops[0] < flops[1]
    assert dev.ours.encoder.unmasked_length(dev.ours.encoder.ids("a cat")) == dev.ours.encoder.most_tokens
