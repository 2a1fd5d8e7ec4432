"""The prices of released pipelines, compared with published claims: the figures of docs/images.md."""

from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.core.checkpoint import open_source
from ridgeline.core.checkpoint.catalogue import parameter_counts, pipeline_names
from ridgeline.media.diffusion.image_comparison import IMAGE_LAYOUT, positions
from ridgeline.media.diffusion.pipeline_defaults import PipelineDefaults, build_on_meta
from ridgeline.media.diffusion.pipeline_plan import PipelineOptions, PipelinePlan
from ridgeline.media.diffusion.pipeline_plan_comparison import compare_pipeline_document
from ridgeline.media.diffusion.pipeline_plan_page import pipeline_document, pipeline_json
from ridgeline.media.diffusion.pipeline_price import PipelinePrice
from ridgeline.price.device import HourlyPrice
from ridgeline.price.devices import load_device
from ridgeline.price.error_interval import error_intervals
from ridgeline.price.interval_text import cost_interval, rate_interval, time_interval
from ridgeline.price.plan.comparison import Unpriced
from ridgeline.util.document.elements import Facts
from ridgeline.util.document.humanize import say, three_digits
from ridgeline.util.document.terminal_renderer import plain

PAGE = Path(__file__).resolve().parents[2] / "docs" / "images.md"
ATTENTION = {
    "z-image": (0.15, 0.15), "z-image-turbo": (0.15, 0.15), "flux.2-klein-4b": (0.18, 0.20), "flux.1-dev": (0.19, 0.20),
    "flux.1-schnell": (0.18, 0.20), "pixart-sigma-xl-2-1024-ms": (0.34, 0.36), "pixart-lcm-xl-2-1024-ms": (0.34, 0.36),
    "wan2.1-t2v-1.3b": (0.70, 0.72), "wan2.1-t2v-14b": (0.71, 0.73), "wan2.2-t2v-a14b": (0.71, 0.73),
    "wan2.2-ti2v-5b": (0.53, 0.55),
}  # fmt: skip


@pytest.fixture(scope="module")
def plans() -> dict[str, PipelinePlan]:
    """Of every release, for what it is usually asked for."""
    found = {}
    for name in pipeline_names():
        source = open_source(name)
        price = PipelinePrice(build_on_meta(source))
        found[name] = PipelinePlan(name, price, PipelineDefaults.of(source), load_device("h100-sxm"), PipelineOptions())
    return found


def line_of(plan: PipelinePlan, picture: PipelinePlan) -> str:
    """A release's line of the page's table."""
    request, counts = plan.alone_request, parameter_counts()
    total, own = counts[plan.name][0], counts[picture.name][0]
    latents, denoise = positions(plan.geometry), request.denoise
    flops = sum(stage.flops for stage in request.stages)
    size = str(plan.geometry.size) + (f" x {plan.geometry.frames}" if plan.geometry.frames > 1 else "")
    cells = (
        plan.name, size, f"{total / 1e9:.2f} B", f"x {three_digits(total / own)}", f"{latents:,}",
        f"x {three_digits(latents / positions(picture.geometry))}", f"{plan.geometry.tokens:,}",
        say(denoise.flops / denoise.runs, "FLOP"), f"{denoise.attention:.0%}", f"{plan.job.passes}", say(flops, "FLOP"),
        f"{request.decode.flops / flops:.1%}",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def test_the_page_has_every_release(plans: dict[str, PipelinePlan]) -> None:
    page = PAGE.read_text(encoding="utf-8").splitlines()
    lines = [line_of(plan, plans[IMAGE_LAYOUT]) for plan in plans.values()]
    missing = [line for line in lines if line not in page]
    assert not missing, "\n".join(["docs/images.md lacks", *missing])


def test_attentions_share_of_a_pass(plans: dict[str, PipelinePlan]) -> None:
    """15 to 20 % of Z-Image's, klein's and FLUX.1's passes, 35 % of PixArt's, 53 to 72 % of Wan's."""
    for name, (least, most) in ATTENTION.items():
        assert least <= round(plans[name].alone_request.denoise.attention, 2) <= most, name


SAID = {
    "wan2.1-t2v-1.3b": ("x 0.23", "below", "131,040 latents (x 8.00", "below"),
    "wan2.1-t2v-14b": ("x 2.32", "below", "302,400 latents (x 18.5", "within"),
    "wan2.2-t2v-a14b": ("x 4.64", "within", "302,400 latents (x 18.5", "within"),
    "wan2.2-ti2v-5b": ("x 0.81", "below", "109,120 latents (x 6.66", "below"),
}
"""Of each clip's plan: parameters and latents beside a picture's, and how they stand to what is often said."""


def test_what_is_often_said_of_clips(plans: dict[str, PipelinePlan]) -> None:
    """ "3 to 5 x the parameters, 10 to 100 x the latents of an image": in the plan of every clip, with whether it is
    so, and in none of a picture."""
    clips = [plan for plan in plans.values() if plan.geometry.frames > 1]
    picture, counts = plans[IMAGE_LAYOUT], parameter_counts()
    assert {plan.name for plan in clips} == set(SAID)
    for plan in clips:
        beside = plan.image_comparison
        assert beside is not None
        assert beside.parameters.own == counts[plan.name][0]
        assert beside.parameters.image == counts[IMAGE_LAYOUT][0] == picture.parameters["denoisers"]
        assert (beside.latents.own, beside.latents.image) == (positions(plan.geometry), positions(picture.geometry))
        parameters, their_place, latents, place = SAID[plan.name]
        assert f"{parameters}; often quoted: 3 to 5, this is {their_place})" in beside.words
        assert f"{latents}; often quoted: 10 to 100, this is {place})" in beside.words
        answer = pipeline_document(plan).blocks[0]
        assert isinstance(answer, Facts)
        assert ("video", beside.words) in answer.rows
    assert picture.image_comparison is None
    work = [sum(stage.flops for stage in plan.alone_request.stages) for plan in (plans["wan2.2-t2v-a14b"], picture)]
    assert 90 < work[0] / work[1] < 100  # where a pass's attention grows with the square of its tokens


def test_figures_have_their_intervals(plans: dict[str, PipelinePlan]) -> None:
    """Check the answer, the data and a comparison."""
    free, interval = plans["flux.1-dev"], error_intervals()["image", "timed"]
    device = replace(free.device, price=HourlyPrice(3.6, "2026", "a test"))
    plan = PipelinePlan(free.name, free.price, free.usual, device, PipelineOptions())
    seconds, an_hour, dollars = plan.each.expected, plan.an_hour.expected, plan.dollars
    assert dollars is not None
    answer = pipeline_document(plan).blocks[0]
    assert isinstance(answer, Facts)
    told = dict(answer.rows)
    assert f" {time_interval(interval, seconds)} (floor " in str(told["image"])
    assert f" {rate_interval(interval, an_hour)} per hour" in str(told["image"])
    assert f" {cost_interval(interval, dollars)} per image" in str(told["cost"])
    assert f"in 8 of 10 cases like this one ({interval.measurements}); cases like this one: " in str(told["trust"])
    data = pipeline_json(plan)
    assert data["answer"]["interval"]["high"] == interval.high
    assert data["answer"]["intervals"] == {
        "seconds": (seconds * interval.low, seconds * interval.high),
        "an_hour": (an_hour / interval.high, an_hour / interval.low),
        "dollars": (dollars * interval.low, dollars * interval.high),
    }
    compared = plain(compare_pipeline_document([plan], Unpriced("no price")), 200)
    assert time_interval(interval, seconds) in compared


def test_latents_and_tokens_of_a_picture(plans: dict[str, PipelinePlan]) -> None:
    """1024 x 1024 is 128 x 128 latents, 64 times fewer positions than pixels, in patches of 2 x 2 4,096 tokens."""
    for name in ("z-image", "flux.1-dev", "pixart-sigma-xl-2-1024-ms"):
        geometry = plans[name].geometry
        assert geometry.latents[1:] == (128, 128)
        assert 1024 * 1024 // positions(plans[name].geometry) == 64
        assert geometry.tokens == 4096
    assert plans["flux.2-klein-4b"].geometry.latents[1:] == (64, 64)  # packed 2 x 2 before, and no patches
    assert plans["flux.2-klein-4b"].geometry.tokens == 4096
