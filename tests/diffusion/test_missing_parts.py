"""Folders of pipelines in which parts are missing: a plan needs configs alone, and what draws names what is missing."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ridgeline.cli.diffusion_models import check_medium
from ridgeline.cli.image_files import IMAGE_MEDIUM, video_medium
from ridgeline.core.checkpoint import open_source
from ridgeline.core.models import ModelRefused
from ridgeline.media.diffusion.pipeline_defaults import PipelineDefaults, build_on_meta
from ridgeline.media.diffusion.pipeline_loader import load_pipeline, load_vae
from ridgeline.media.diffusion.pipeline_plan import PipelineOptions, PipelinePlan
from ridgeline.media.diffusion.pipeline_plan_page import pipeline_json
from ridgeline.media.diffusion.pipeline_price import PipelinePrice
from ridgeline.price.devices import load_device
from support.checkpoints import edit_config
from support.flux_pipelines import flux, klein
from support.pipelines import pixart, wan, z_image

KINDS: dict[str, Callable[[Path], Any]] = {
    "ZImagePipeline": z_image,
    "FluxPipeline": lambda folder: flux(folder, dev=True),
    "Flux2KleinPipeline": lambda folder: klein(folder, distilled=True),
    "PixArtAlphaPipeline": lambda folder: pixart(folder, sigma=False),
    "WanPipeline": wan,
    "two experts": lambda folder: wan(folder, experts=True),
}
MODELS = ("text_encoder", "text_encoder_2", "transformer", "transformer_2", "vae")


@pytest.fixture(scope="module", params=KINDS)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as diffusers wrote it."""
    folder = tmp_path_factory.mktemp("whole")
    KINDS[request.param](folder)
    return folder


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    """A copy to take parts from."""
    shutil.copytree(whole, tmp_path / "copy")
    return tmp_path / "copy"


def parts_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def refusal(draws: Callable[[], object]) -> str:
    """What it is refused with, in one line."""
    with pytest.raises(ModelRefused) as refused:
        draws()
    assert "\n" not in str(refused.value)
    return str(refused.value)


def planned(folder: Path) -> Any:
    """All figures of a folder's plan."""
    source = open_source(str(folder))
    parts = build_on_meta(source)
    plan = PipelinePlan(
        "planned", PipelinePrice(parts), PipelineDefaults.of(source, parts), load_device("h100-sxm"), PipelineOptions()
    )
    return pipeline_json(plan)


def test_a_plan_needs_configs_alone(whole: Path, copy: Path) -> None:
    """No weights, no tokenizers, no scheduler: the same figures."""
    for path in copy.rglob("*"):
        if path.is_file() and path.name not in ("config.json", "model_index.json", "generation_config.json"):
            path.unlink()
    for part in parts_of(copy):
        if not (copy / part / "config.json").exists():
            shutil.rmtree(copy / part)
    assert set(parts_of(copy)) <= set(MODELS)
    for part in set(parts_of(copy)) - {"transformer", "transformer_2", "vae"}:
        edit_config(copy / part, architectures=None)  # which the index states too
    assert planned(copy) == planned(whole)


def test_a_plan_names_the_config_that_is_missing(copy: Path) -> None:
    """Of each model in turn; a part that no plan reads is never named."""
    for part in parts_of(copy):
        config = copy / part / "config.json"
        if part not in MODELS:
            shutil.rmtree(copy / part)
            build_on_meta(open_source(str(copy)))
            continue
        held = config.read_bytes()
        config.unlink()
        said = refusal(lambda: build_on_meta(open_source(str(copy))))
        assert said.startswith(f"{copy / part} has no config.json ("), said
        config.write_bytes(held)


@pytest.mark.parametrize("leaves", ["nothing", "an empty folder", "no entry in the index"])
def test_what_draws_names_the_part_that_is_missing(copy: Path, leaves: str) -> None:
    """Each in turn, whether its folder, its files or its entry is not there."""
    index, values = copy / "model_index.json", json.loads((copy / "model_index.json").read_text(encoding="utf-8"))
    for part in parts_of(copy):
        (copy / part).rename(copy.parent / "away")
        if leaves == "an empty folder":
            (copy / part).mkdir()
        if leaves == "no entry in the index":
            index.write_text(json.dumps({name: entry for name, entry in values.items() if name != part}))
        said = refusal(lambda: load_pipeline(str(copy)))
        assert re.search(rf"\b{part}\b", said), (part, said)
        if leaves == "an empty folder":
            (copy / part).rmdir()
        index.write_text(json.dumps(values))
        (copy.parent / "away").rename(copy / part)
    load_pipeline(str(copy))


def test_weights_that_are_missing(copy: Path) -> None:
    """Are named by the part, of each model in turn."""
    for part in set(parts_of(copy)) & set(MODELS):
        weights = sorted((copy / part).glob("*.safetensors*"))
        for path in weights:
            path.rename(path.with_suffix(".away"))
        assert f"{copy / part}" in refusal(lambda: load_pipeline(str(copy))), part
        for path in weights:
            path.with_suffix(".away").rename(path)
    load_pipeline(str(copy))


def test_saved_latents_need_the_vae_alone(copy: Path) -> None:
    """Which other part is missing does not matter to what decodes them."""
    for part in set(parts_of(copy)) - {"vae"}:
        shutil.rmtree(copy / part)
    source = open_source(str(copy))
    check_medium(source, video_medium(1.0) if source.pipeline == "WanPipeline" else IMAGE_MEDIUM)
    assert load_vae(str(copy)).channels > 0
    shutil.rmtree(copy / "vae")
    assert refusal(lambda: load_vae(str(copy))).startswith(f"{copy} lacks the folder vae (")
