"""Passes that nothing fuses: what diffusers' classes dispatch is what the table says, and what that takes."""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from ridgeline.core.checkpoint import open_source
from ridgeline.core.checkpoint.catalogue import pipeline_names
from ridgeline.media.diffusion.eager import Unfused, unfused
from ridgeline.media.diffusion.pipeline_defaults import PipelineDefaults, build_on_meta
from ridgeline.media.diffusion.pipeline_plan import PipelineOptions, PipelinePlan
from ridgeline.media.diffusion.pipeline_price import PipelinePrice
from ridgeline.price.devices import load_device

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
H100 = load_device("h100-sxm")


@pytest.fixture(scope="module")
def recorder() -> ModuleType:
    """benchmarks/eager.py, which makes the table."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return import_module("eager")
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.mark.parametrize("release", ["flux.2-klein-4b", "pixart-sigma-xl-2-1024-ms"])
def test_the_table_is_what_diffusers_dispatches(recorder: ModuleType, release: str) -> None:
    source = open_source(release)
    config, known = source.components["transformer"].config, unfused(release)
    assert config is not None
    assert known is not None
    found = recorder.lines_of(config.values, source.generation["tokens"])
    assert known.kernels == tuple((fixed, each, count) for (fixed, each), count in found.items())


def test_all_releases_are_in_it() -> None:
    assert all(unfused(name) is not None for name in pipeline_names())
    assert unfused("another") is None


def test_what_flux_moves() -> None:
    """172 GB of 2,320 ops a pass at 1,024 x 1,024, beside products and attention; with twice the tokens less than twice
    as much, as its text stays."""
    ops = unfused("flux.1-dev")
    assert ops is not None
    assert ops.nbytes(4096) == pytest.approx(172e9, rel=0.01)
    assert sum(count for _, _, count in ops.kernels) == 2320
    assert 1.7 < ops.nbytes(8192) / ops.nbytes(4096) < 2


def test_seconds_are_those_of_kernels() -> None:
    """A launch each, and bytes at elementwise kernels' share of the bandwidth; what fits the cache at the cache's."""
    few, many = Unfused(((0, 10**6, 3),)), Unfused(((0, 10**6, 30),))
    bound, expected = few.seconds(H100, 100)  # 100 MB: past the L2
    share, launch = H100.efficiency_of("elementwise").memory, H100.efficiency_of("elementwise").launch
    assert bound == pytest.approx(3 * 100e6 / H100.bandwidth)
    assert expected == pytest.approx(3 * (launch + 100e6 / H100.bandwidth / share))
    assert many.seconds(H100, 100)[1] == pytest.approx(10 * expected)
    assert few.seconds(H100, 10)[0] == pytest.approx(3 * 10e6 / H100.caches[0].bandwidth)


def test_fusion_deletes_elementwise_bytes() -> None:
    """The same products, attention and passes; more bytes and seconds of all else, on one card and divided."""
    source = open_source("flux.1-dev")
    usual, price = PipelineDefaults.of(source), PipelinePrice(build_on_meta(source))

    def planned(devices: int, *, eager: bool) -> PipelinePlan:
        return PipelinePlan("flux.1-dev", price, usual, H100, PipelineOptions(), devices, eager=eager)

    fused, eager = planned(1, eager=False), planned(1, eager=True)
    kinds = [{row.kind: row for row in plan.request.denoise.once.classes} for plan in (fused, eager)]
    assert kinds[0]["linear"].flops == kinds[1]["linear"].flops
    assert kinds[0]["attention"].flops == kinds[1]["attention"].flops
    assert "norm" not in kinds[1]
    assert kinds[1]["elementwise"].nbytes > 4 * (kinds[0]["norm"].nbytes + kinds[0]["elementwise"].nbytes)
    assert eager.request.seconds.floor == fused.request.seconds.floor
    assert 1.2 < eager.request.seconds.expected / fused.request.seconds.expected < 1.6
    assert fused.other_fusion is not None
    assert fused.other_fusion.seconds == eager.request.seconds
    assert eager.other_fusion is not None
    assert eager.other_fusion.seconds == fused.request.seconds
    parts = sum(row.expected for row in eager.request.denoise.once.classes)
    assert parts == pytest.approx(eager.request.denoise.once.seconds.expected)
    assert planned(4, eager=True).request.seconds.expected < eager.request.seconds.expected / 2
    with pytest.raises(ValueError, match="leave --eager out"):
        PipelinePlan("another", price, usual, H100, PipelineOptions(), eager=True)
