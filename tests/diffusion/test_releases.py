"""What released pipelines cost, against what the texts say of them: the figures of docs/pictures.md."""

from pathlib import Path

import pytest

from ridgeline.checkpoint import open_source
from ridgeline.checkpoint.catalogue import parameter_counts, pipeline_names
from ridgeline.diffusion.outline import Usual, outline
from ridgeline.diffusion.plan import Asked, PipelinePlan
from ridgeline.diffusion.price import PipelinePrice
from ridgeline.document.numbers import say, three
from ridgeline.roofline.cards import load_card

PAGE = Path(__file__).resolve().parents[2] / "docs" / "pictures.md"
PICTURE = "z-image"
"""Whose parameters, and latents of a picture of 1,024 x 1,024, those of clips are held against."""
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
        price = PipelinePrice(outline(source))
        found[name] = PipelinePlan(name, price, Usual.of(source), load_card("h100-sxm"), Asked())
    return found


def latents_of(plan: PipelinePlan) -> int:
    """Positions."""
    count = 1
    for each in plan.geometry.latents[1:]:
        count *= each
    return count


def line_of(plan: PipelinePlan, picture: PipelinePlan) -> str:
    """A release's line of the page's table."""
    request, counts = plan.alone_request, parameter_counts()
    total, own = counts[plan.name][0], counts[picture.name][0]
    latents, denoise = latents_of(plan), request.denoise
    flops = sum(stage.flops for stage in request.stages)
    size = str(plan.geometry.size) + (f" x {plan.geometry.frames}" if plan.geometry.frames > 1 else "")
    cells = (
        plan.name, size, f"{total / 1e9:.2f} B", f"x {three(total / own)}", f"{latents:,}",
        f"x {three(latents / latents_of(picture))}", f"{plan.geometry.tokens:,}",
        say(denoise.flops / denoise.runs, "FLOP"), f"{denoise.attention:.0%}", f"{plan.job.passes}", say(flops, "FLOP"),
        f"{request.decode.flops / flops:.1%}",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def test_the_page_has_every_release(plans: dict[str, PipelinePlan]) -> None:
    page = PAGE.read_text(encoding="utf-8").splitlines()
    lines = [line_of(plan, plans[PICTURE]) for plan in plans.values()]
    missing = [line for line in lines if line not in page]
    assert not missing, "\n".join(["docs/pictures.md lacks", *missing])


def test_attentions_share_of_a_pass(plans: dict[str, PipelinePlan]) -> None:
    """15 to 20 % of Z-Image's, klein's and FLUX.1's passes, 35 % of PixArt's, 53 to 72 % of Wan's."""
    for name, (least, most) in ATTENTION.items():
        assert least <= round(plans[name].alone_request.denoise.attention, 2) <= most, name


def test_what_the_texts_say_of_clips(plans: dict[str, PipelinePlan]) -> None:
    """ "3 to 5 x the parameters, 10 to 100 x the latents of an image": of Wan 2.2's two experts together x 4.6, of the
    others 0.2 to 2.3; of latents 6.7 to 18.5."""
    clips = [plan for plan in plans.values() if plan.geometry.frames > 1]
    picture, counts = plans[PICTURE], parameter_counts()
    parameters = {plan.name: counts[plan.name][0] / counts[PICTURE][0] for plan in clips}
    latents = {plan.name: latents_of(plan) / latents_of(picture) for plan in clips}
    assert [name for name, times in parameters.items() if 3 <= times <= 5] == ["wan2.2-t2v-a14b"]
    assert max(parameters.values()) == pytest.approx(4.64, abs=0.01)
    assert [round(latents[name], 1) for name in sorted(latents)] == [8.0, 18.5, 18.5, 6.7]
    work = [sum(stage.flops for stage in plan.alone_request.stages) for plan in (plans["wan2.2-t2v-a14b"], picture)]
    assert 90 < work[0] / work[1] < 100  # where a pass's attention grows with the square of its tokens


def test_latents_and_tokens_of_a_picture(plans: dict[str, PipelinePlan]) -> None:
    """1024 x 1024 is 128 x 128 latents, 64 times fewer positions than pixels, in patches of 2 x 2 4,096 tokens."""
    for name in ("z-image", "flux.1-dev", "pixart-sigma-xl-2-1024-ms"):
        geometry = plans[name].geometry
        assert geometry.latents[1:] == (128, 128)
        assert 1024 * 1024 // latents_of(plans[name]) == 64
        assert geometry.tokens == 4096
    assert plans["flux.2-klein-4b"].geometry.latents[1:] == (64, 64)  # packed 2 x 2 before, and no patches
    assert plans["flux.2-klein-4b"].geometry.tokens == 4096
