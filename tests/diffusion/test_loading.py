"""Folders of pipelines: what they say of requests, and those that are refused, in one line each."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import ZImagePipeline
from safetensors.torch import load_file, save_file

from diffusion.schedulers import relative
from ridgeline.backends import backend_of
from ridgeline.backends.model_loader import load_denoiser
from ridgeline.core.models import ModelRefused
from ridgeline.core.models.common.priced_module import PricedModule
from ridgeline.core.ops.bound import BackendModule
from ridgeline.media.diffusion.diffusion_request import DiffusionRequest
from ridgeline.media.diffusion.geometry import LAYOUTS, Size
from ridgeline.media.diffusion.pipeline_loader import load_pipeline
from support.checkpoints import edit_config
from support.flux_pipelines import flux, klein
from support.pipelines import CHANNELS, SIZES, generators, wan, z_image


@pytest.fixture
def folder(z_image_folder: Path, tmp_path: Path) -> Path:
    """A copy to be broken."""
    shutil.copytree(z_image_folder, tmp_path / "copy")
    return tmp_path / "copy"


def edit(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file; None removes one."""
    values = json.loads(path.read_text(encoding="utf-8")) | changes
    path.write_text(json.dumps({k: v for k, v in values.items() if v is not None}), encoding="utf-8")


def test_what_a_folder_says(folder: Path) -> None:
    """Sizes, steps and guidance; channels, patches and pixels to a latent are the parts' own."""
    edit(folder / "generation_config.json", num_inference_steps=3, guidance_scale=1.25)
    pipeline = load_pipeline(str(folder))
    plan = pipeline.plan(DiffusionRequest("a cat"))
    assert (plan.schedule.steps, plan.scale, plan.guidance.scale) == (3, 1.25, 2.25)
    assert plan.geometry.size == Size(96, 64)
    assert plan.geometry.latents == (CHANNELS, 16, 24)
    assert plan.geometry.tokens == 8 * 12
    assert [str(size) for size in pipeline.layout.sizes] == list(SIZES)
    assert 0 <= plan.seed < 2**32
    assert plan.seed != pipeline.plan(DiffusionRequest("a cat")).seed, "seeds that nobody states differ"


def test_what_a_release_leaves_to_its_class(folder: Path) -> None:
    """diffusers' arguments by default, and the menu of the class. Not drawn: too large for these weights' places."""
    (folder / "generation_config.json").unlink()
    pipeline = load_pipeline(str(folder))
    assert pipeline.layout.sizes == LAYOUTS["z-image"].sizes
    assert (pipeline.kind.steps, pipeline.kind.guidance) == (50, 5.0)


@pytest.mark.parametrize("make", [z_image, partial(flux, dev=False), partial(klein, distilled=False), wan])
def test_every_part_is_prepared(make: Callable[[Path], object], tmp_path: Path) -> None:
    """Text encoders, denoiser and autoencoder run on the kernels of this machine, as language models do."""
    make(tmp_path)
    pipeline = load_pipeline(str(tmp_path), threads=1)
    parts = [*pipeline.texts.encoder.models, pipeline.denoiser, pipeline.autoencoder]
    networks = [part for part in parts if isinstance(part, PricedModule)]
    assert len(networks) >= 2
    wanted = type(backend_of(torch.device("cpu")))
    for network in networks:
        kinds = {type(module.backend) for module in network.modules() if isinstance(module, BackendModule)}
        assert kinds == {wanted}, type(network).__name__


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (
            DiffusionRequest("x", size=Size(80, 80)),
            r"this model cannot make size 80x80; give one of 96x64, 64x64, 64x96",
        ),
        (DiffusionRequest("x", steps=0), "the number of steps is 0; this model takes 1 to 999"),
        (DiffusionRequest("x", steps=10**6), "the number of steps is 1000000; this model takes 1 to 999"),
        (DiffusionRequest("x", guidance=float("nan")), "guidance is nan; it must be a number from 0 to 100"),
        (DiffusionRequest("x", images=10**4), "the number of images or videos is 10000; give 1 to 100"),
        (DiffusionRequest("x", images=0), "the number of images or videos is 0; give 1 to 100"),
        (DiffusionRequest("x", seed=-1), r"seed is -1; it must be an integer from 0 to \d+"),
        (
            DiffusionRequest("x", "y", guidance=0.0),
            "the negative prompt would have no effect: guidance is off at 0: .*",
        ),
    ],
)
def test_requests_that_cannot_be(z_image_folder: Path, request_: DiffusionRequest, says: str) -> None:
    with pytest.raises(ValueError, match=f"^{says}$"):
        load_pipeline(str(z_image_folder)).plan(request_)


def _without(part: str) -> Callable[[Path], None]:
    return lambda folder: shutil.rmtree(folder / part)


def _unlisted(part: str) -> Callable[[Path], None]:
    return lambda folder: edit(folder / "model_index.json", **{part: None})


def _stating(**values: Any) -> Callable[[Path], None]:
    return lambda folder: edit(folder / "generation_config.json", **values)


def _reshaped(folder: Path) -> None:
    """A text encoder of another width: the first three layers of another model's would do as well."""
    tensors = load_file(folder / "transformer" / "diffusion_pytorch_model.safetensors")
    tensors["cap_embedder.0.weight"] = torch.ones(16)
    tensors["cap_embedder.1.weight"] = torch.ones(32, 16)
    save_file(tensors, folder / "transformer" / "diffusion_pytorch_model.safetensors")
    edit_config(folder / "transformer", cap_feat_dim=16)


BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "no vae": (_without("vae"), r"lacks the folder vae \(AutoencoderKL\); fetch the pipeline again"),
    "no tokenizer": (_without("tokenizer"), r"lacks the folder tokenizer \(\w+\); fetch the pipeline again"),
    "no scheduler": (_without("scheduler"), r"lacks the folder scheduler \(FlowMatch\w+\); fetch the pipeline again"),
    "no transformer listed": (_unlisted("transformer"), "does not list transformer, which a ZImagePipeline needs"),
    "no index": (
        lambda folder: (folder / "model_index.json").unlink(),
        "is not a model: it has parts of a pipeline and no model_index.json; fetch it again",
    ),
    "no config of the encoder": (
        lambda folder: (folder / "text_encoder" / "config.json").unlink(),
        "is not a model: it has no config.json",
    ),
    "no scheduler_config": (
        lambda folder: (folder / "scheduler" / "scheduler_config.json").unlink(),
        "scheduler_config.json",
    ),
    "another scheduler": (
        lambda folder: edit(folder / "scheduler" / "scheduler_config.json", _class_name="DDIMScheduler"),
        "_class_name is DDIMScheduler; supported are FlowMatchEulerDiscreteScheduler,",
    ),
    "no weights": (
        lambda folder: (folder / "vae" / "diffusion_pytorch_model.safetensors").unlink(),
        r"vae holds no \*.safetensors file",
    ),
    "no template": (
        lambda folder: (folder / "tokenizer" / "chat_template.jinja").unlink(),
        "tokenizer has no chat template, which this pipeline applies to texts; fetch it again",
    ),
    "another class": (
        lambda folder: edit(folder / "model_index.json", _class_name="SanaPipeline"),
        "is a SanaPipeline, which is not supported; supported are ZImagePipeline, ",
    ),
    "an encoder of another": (
        _reshaped,
        "the text encoder's hidden states have 24 numbers, but the transformer reads 16",
    ),
    "no sizes": (_stating(sizes=[]), r"sizes is \[\]; it must be a list of sizes like \"1024x768\""),
    "a size that is none": (_stating(sizes=["64x"]), "size '64x': write width x height in pixels"),
    "a size between patches": (_stating(sizes=["64x60"]), "images of 64x60 do not divide into patches of 8 x 8"),
    "steps that are none": (_stating(num_inference_steps=0), "num_inference_steps is 0; it must be an integer"),
}


@pytest.mark.parametrize(("breaks", "says"), BROKEN.values(), ids=BROKEN)
def test_folders_that_are_refused(folder: Path, breaks: Callable[[Path], None], says: str) -> None:
    breaks(folder)
    with pytest.raises(ModelRefused, match=says) as refused:
        load_pipeline(str(folder))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["tales", "qwen3-8b"])
def test_models_that_draw_nothing(name: str) -> None:
    with pytest.raises(
        ModelRefused, match=rf"{name} is \w+ForCausalLM, which makes no images: give the folder of a diffusion pip"
    ):
        load_pipeline(name)


def test_a_denoiser_in_another_number_format(z_image_folder: Path) -> None:
    """bf16 is fp32 rounded, and is what is run; fp16 is refused, as it would leave its range."""
    stored, wide, rounded = (
        dict(load_denoiser(str(z_image_folder / "transformer"), dtype).named_parameters())
        for dtype in (None, torch.float32, torch.bfloat16)
    )
    for name, parameter in stored.items():
        assert torch.equal(wide[name], parameter), name
        assert rounded[name].dtype == torch.bfloat16
        assert torch.equal(rounded[name], parameter.bfloat16()), name
    with pytest.raises(ValueError, match=r"^a denoiser cannot run in torch.float16; give torch.float32 or"):
        load_denoiser(str(z_image_folder / "transformer"), torch.float16)


def test_drawn_in_bf16(z_image_folder: Path) -> None:
    """Near what fp32 gives: the pipeline keeps latents in fp32 between steps."""
    request = DiffusionRequest("a cat", None, Size(64, 64), 2, 0.0, 3)
    exact, rounded = (load_pipeline(str(z_image_folder), dtype).draw(request) for dtype in (None, torch.bfloat16))
    assert exact.dtype == rounded.dtype == torch.float32
    assert 1e-5 < relative(rounded, exact) < 0.1


def test_grey(tmp_path: Path) -> None:
    """A VAE of one channel gives pictures of one."""
    theirs: ZImagePipeline = z_image(tmp_path, pixels=1)
    request = DiffusionRequest("a cat", None, Size(64, 64), 2, 0.0, 3)
    pixels = load_pipeline(str(tmp_path)).draw(request)
    expected = theirs(
        "a cat", height=64, width=64, num_inference_steps=2, guidance_scale=0.0, generator=generators(3, 1)[0],
        output_type="pt",
    ).images  # fmt: skip
    assert pixels.shape == (1, 1, 64, 64)
    assert relative((pixels / 2 + 0.5).clamp(0, 1), expected) < 1e-5


def test_loading_is_told_as_one(z_image_folder: Path) -> None:
    """Bytes done rise through all parts to those of all their files."""
    told: list[tuple[int, int]] = []
    load_pipeline(str(z_image_folder), progress=lambda done, every: told.append((done, every)))
    (every,) = {every for _, every in told}
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1][0] == every


def test_a_pipeline_of_the_catalogue_draws_nothing() -> None:
    """It has configs alone, of parts that `plan` prices."""
    with pytest.raises(ModelRefused, match="z-image-turbo is a built-in config without weights"):
        load_pipeline("z-image-turbo")
