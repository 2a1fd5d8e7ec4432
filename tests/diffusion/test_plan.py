"""Plans of pipelines: what a request comes to, what would change it, and one request on several cards."""

import math
from dataclasses import replace

import pytest

from ridgeline.core.checkpoint import open_source
from ridgeline.core.models.common.denoiser import CONDITIONS, JOINT
from ridgeline.core.ops.attention import Attention
from ridgeline.media.diffusion.diffusion_parallel import ParallelDegrees, ParallelPass, divisions, exchange
from ridgeline.media.diffusion.geometry import Size
from ridgeline.media.diffusion.pipeline_defaults import PipelineDefaults, build_on_meta
from ridgeline.media.diffusion.pipeline_plan import PipelineOptions, PipelinePlan
from ridgeline.media.diffusion.pipeline_price import PipelinePrice
from ridgeline.price.device import HourlyPrice
from ridgeline.price.devices import load_device
from ridgeline.price.price import Price

SOURCE = open_source("z-image")
USUAL = PipelineDefaults.of(SOURCE)
H100 = load_device("h100-sxm")


@pytest.fixture(scope="module")
def price() -> PipelinePrice:
    """Of Z-Image."""
    return PipelinePrice(build_on_meta(SOURCE))


def planned(price: PipelinePrice, devices: int = 1, **asked: object) -> PipelinePlan:
    """Z-Image on H100s."""
    return PipelinePlan("z-image", price, USUAL, H100, PipelineOptions(**asked), devices)  # type: ignore[arg-type]


def test_what_is_left_open_is_the_releases(price: PipelinePrice) -> None:
    usual, asked = planned(price), planned(price, size=Size(512, 512), steps=9, guidance=0.0, count=3)
    assert (usual.geometry.tokens, usual.steps, usual.job.passes) == (4096, 50, 100)
    assert (asked.geometry.tokens, asked.steps, asked.job.passes, asked.job.images) == (1024, 9, 9, 3)
    assert asked.guidance_off is None
    assert usual.guidance_off is not None
    assert usual.guidance_off.passes == 50


def test_fewer_steps_and_no_guidance_save_passes(price: PipelinePrice) -> None:
    """50 to 8 steps save 84 % of the passes, 50 to 4 92 %; no guidance half."""
    plan = planned(price)
    passes = {each.name: each.passes for each in plan.fewer_steps}
    assert (passes["8 steps"], passes["4 steps"]) == (16, 8)
    for each in plan.fewer_steps:
        saved = 1 - each.seconds.expected / plan.on_one_gpu.seconds.expected
        assert saved == pytest.approx(1 - each.passes / 100, abs=0.01)
    assert plan.guidance_off is not None
    assert plan.guidance_off.seconds.expected == pytest.approx(plan.on_one_gpu.seconds.expected / 2, rel=0.02)


def test_pictures_side_by_side_are_no_faster_above_the_ridge(price: PipelinePrice) -> None:
    """4,096 tokens are; 1,024 gain some launches."""
    large, small = (planned(price, size=size).side_by_side for size in (Size(1024, 1024), Size(512, 512)))
    assert all(1 <= gain < 1.05 for gain in large.values()), large
    assert all(small[count] > large[count] for count in large)


def test_what_it_costs(price: PipelinePrice) -> None:
    """Dollars of all cards for as long as it takes, over the pictures."""
    card = replace(H100, price=HourlyPrice(3.0, "2026", "test"))
    plan = PipelinePlan("z-image", price, USUAL, card, PipelineOptions(count=2), 4)
    seconds = plan.request.seconds.expected
    assert plan.dollars == pytest.approx(3.0 * 4 * seconds / 3600 / 2)
    assert plan.an_hour.expected == pytest.approx(3600 / (seconds / 2))
    assert PipelinePlan("z-image", price, USUAL, replace(H100, price=None), PipelineOptions()).dollars is None


@pytest.mark.parametrize(("gib", "how"), [(80, "yes"), (24.4, "yes"), (23.4, "tiled"), (19, "in turns"), (14, "no")])
def test_how_it_fits(price: PipelinePrice, gib: float, how: str) -> None:
    """All of it takes 20.2 GiB beside what the driver has, in tiles 19.3, its parts in turns 11.8."""
    card = replace(H100, memory=gib * 2**30)
    assert PipelinePlan("z-image", price, USUAL, card, PipelineOptions()).fit.verdict == how


# -- several cards ----------------------------------------------------------------------------------------------------


def test_ways_to_divide() -> None:
    assert divisions(1, 2, 30) == [ParallelDegrees()]
    assert divisions(8, 2, 30) == [ParallelDegrees(2, 4), ParallelDegrees(1, 8)]
    assert divisions(8, 1, 30) == [ParallelDegrees(1, 8)]
    assert divisions(64, 2, 30) == []
    assert divisions(3, 2, 30) == [ParallelDegrees(1, 3)]
    assert str(ParallelDegrees(2, 4)) == "guidance 2 x sequence 4"


@pytest.mark.parametrize("parts", [2, 4, 7])
def test_a_cards_part_of_a_pass(price: PipelinePrice, parts: int) -> None:
    """All parts together are the pass: but for rows that pad it, the heads that pad 30 to a multiple, and what is once
    a picture on every card."""
    denoiser = price.parts.denoisers[0]
    whole, cost = denoiser.pass_work((128, 128), [96]), Price(denoiser)
    part = ParallelPass(cost, parts).of(whole)
    assert part.rows[JOINT] == math.ceil(whole.rows[JOINT] / parts)
    assert part.rows[CONDITIONS] == whole.rows[CONDITIONS]
    heads = math.ceil(30 / parts) * parts / 30
    for reach, attention in whole.attention.items():
        padded = math.ceil(attention.total.queries / parts) * parts
        assert part.attention[reach].total.pairs * parts == pytest.approx(padded**2 * heads, abs=parts)
    once = Price(denoiser).step(type(whole)({CONDITIONS: 1}, 1, {r: w * 0 for r, w in whole.attention.items()}))
    together = (cost.step(part).total_flops - once.total_flops) * parts + once.total_flops
    assert together == pytest.approx(cost.step(whole).total_flops, rel=0.16 * (heads - 1) + 0.001)


def test_what_cards_exchange(price: PipelinePrice) -> None:
    """Queries, keys, values and results of a card's rows, 2 bytes each, at every attention of 32 blocks; two more see
    texts alone, once a request."""
    denoiser = price.parts.denoisers[0]
    cost = Price(denoiser)
    divided = ParallelPass(cost, 4)
    messages = divided.messages(divided.of(denoiser.pass_work((128, 128), [96])))
    blocks = {"joint": 30, "latents": 2}
    rows = {"joint": 4192 // 4, "latents": 4096 // 4}
    expected = sum(blocks[space] * rows[space] * 4 * 3840 * 2 for space in blocks)
    assert sum(message.communication_bytes for message in messages) == expected
    assert sum(isinstance(op, Attention) for _, op in denoiser.ops()) * 4 == len(messages) + 8
    assert exchange((16, 128, 128)).communication_bytes == 2 * 4 * 16 * 128 * 128


def test_two_cards_share_a_pair_for_nothing(price: PipelinePrice) -> None:
    """Each half runs one pass: all but twice as fast; cut by its sequence a request is slower, and both beat one card.
    The fastest way is taken."""
    plan = planned(price, 2)
    ways = {way: request.seconds.expected for way, request in plan.ways.items()}
    alone = plan.on_one_gpu.seconds.expected
    assert 1.9 < alone / ways[ParallelDegrees(2, 1)] < 2
    assert ways[ParallelDegrees(2, 1)] < ways[ParallelDegrees(1, 2)] < alone
    assert plan.request.division == ParallelDegrees(2, 1)
    assert set(planned(price, 2, guidance=0.0).ways) == {ParallelDegrees(1, 2)}


def test_more_cards_are_faster_and_dearer(price: PipelinePrice) -> None:
    plan = planned(price, 8)
    fastest = {count: min(r.seconds.expected for r in ways.values()) for count, ways in plan.by_gpu_count.items()}
    assert list(fastest) == [1, 2, 4, 8]
    assert sorted(fastest.values(), reverse=True) == list(fastest.values())
    assert all(fastest[1] / fastest[count] < count for count in (2, 4, 8))
    assert plan.request.denoise.communication.expected > 0
    assert plan.alone_request.denoise.communication.expected == 0


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"steps": 0}, "--steps is 0"), ({"steps": 10**6}, "from 1 to 1000"), ({"count": 10**4}, "--count is 10000"),
        ({"guidance": float("nan")}, "guidance is nan"), ({"size": Size(1000, 1000)}, "cannot make size 1000x1000"),
        ({"frames": 5}, "it makes only images"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked(price: PipelinePrice, asked: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        planned(price, **asked)


def test_more_cards_than_heads(price: PipelinePrice) -> None:
    with pytest.raises(ValueError, match="lower --devices"):
        planned(price, 62)
    with pytest.raises(ValueError, match="at least 1"):
        planned(price, 0)
