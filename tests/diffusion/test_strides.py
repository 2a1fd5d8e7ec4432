"""A request stride by stride: what the whole request gives, bit for bit, whoever has a stride in between."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from ridgeline.core.models.common.tiling import Tiling
from ridgeline.media.diffusion.diffusion_request import DiffusionRequest
from ridgeline.media.diffusion.geometry import Size
from ridgeline.media.diffusion.pipeline import Pipeline
from ridgeline.media.diffusion.pipeline_loader import load_pipeline
from ridgeline.media.diffusion.work_units import WorkUnit, count_work_units, run_work_units, seconds_per_unit
from support.pipelines import wan

REQUESTS = (
    DiffusionRequest("a cat", "blurred", Size(64, 64), 3, 2.0, 5, 3),
    DiffusionRequest("a dog", None, Size(96, 64), 2, 0.0, 2, 1),
)


@pytest.fixture(scope="module")
def pipeline(z_image_folder: Path) -> Pipeline:
    return load_pipeline(str(z_image_folder), threads=1)


def pixels(done: list[WorkUnit]) -> Tensor:
    drawn = [(stride.image, stride.pixels) for stride in done if stride.pixels is not None]
    assert [image for image, _ in drawn] == list(range(len(drawn)))
    return torch.stack([each for _, each in drawn])


@pytest.mark.parametrize("request_", REQUESTS)
@pytest.mark.parametrize("tiling", [None, Tiling(8, 2)])
def test_strides_draw_what_the_pipeline_draws(
    pipeline: Pipeline, request_: DiffusionRequest, tiling: Tiling | None
) -> None:
    plan = pipeline.plan(request_)
    done = list(run_work_units(pipeline, plan, tiling))
    assert len(done) == count_work_units(plan)
    assert torch.equal(pixels(done), pipeline.draw(request_, tiling))
    assert done[0].stage == "encode"
    assert sum(stride.stage == "denoise" for stride in done) == plan.steps


def test_a_picture_is_decoded_when_its_latents_are_there(pipeline: Pipeline) -> None:
    """Those that are drawn one after the other come one after the other."""
    plan = pipeline.plan(REQUESTS[0], lambda _, texts: float(len(texts)))
    assert [stride.stage for stride in run_work_units(pipeline, plan)] == [
        "encode",
        *(["denoise"] * 3 + ["decode"]) * 3,
    ]


def test_requests_take_turns(pipeline: Pipeline) -> None:
    runs = [run_work_units(pipeline, pipeline.plan(request)) for request in REQUESTS]
    done: list[list[WorkUnit]] = [[], []]
    while len(done[0]) < 7:
        for run, own in zip(runs, done, strict=True):
            if (stride := next(run, None)) is not None:
                own.append(stride)
    for request, own in zip(REQUESTS, done, strict=True):
        assert torch.equal(pixels(own), pipeline.draw(request))


def test_a_clip_is_decoded_part_by_part(tmp_path: Path) -> None:
    """Two of one request: frames of latents are strides, and together what the pipeline draws."""
    wan(tmp_path)
    clips = load_pipeline(str(tmp_path), threads=1)
    request = DiffusionRequest("a cat", None, Size(64, 32), 1, 0.0, 5, 2, frames=9)
    plan = clips.plan(request)
    done = list(run_work_units(clips, plan))
    assert len(done) == count_work_units(plan) == 2 + 2 * 3
    found = [[each.pixels for each in done if each.image == image and each.pixels is not None] for image in range(2)]
    assert [part.shape[1] for part in found[0]] == [1, 4, 4]
    assert torch.equal(torch.stack([torch.cat(parts, 1) for parts in found]), clips.draw(request))
    assert [each.whole for each in done[2:]] == [False, False, True] * 2
    assert seconds_per_unit(plan, {"encode": 1.0, "denoise": 2.0, "decode": 12.0})["decode"] == 2.0
