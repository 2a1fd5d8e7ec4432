"""Every figure of every card has a source whose text says what the figure is: its unit, dense or not, which direction,
how memory was counted. And figures of one card are in the ratios that chips have, or the source says
that they are not."""

import math
import re

import pytest

from ridgeline.price.device import Device
from ridgeline.price.devices import catalogue_devices

CARDS = {device.name: device for device in catalogue_devices()}
NARROWER = {"fp8": "bf16", "int8": "bf16", "fp4": "fp8"}  # twice as fast as, where nothing else is said


def over_pcie(device: Device) -> bool:
    """Cards that talk so with each other talk so with their host, and state it once."""
    return device.link is not None and device.link.name.startswith("PCIe")


def fields(device: Device) -> set[str]:
    named = {"bandwidth", "memory", "efficiency"} | {f"tflops.{number}" for number in device.peaks}
    named |= {"caches"} if device.caches else set()
    named |= {"link", "link.all_reduce"} if device.link else set()
    named |= {"host_link"} if device.host_link and not over_pcie(device) else set()
    named |= {"watts"} if device.watts else set()
    return named


@pytest.mark.parametrize("name", CARDS)
def test_every_figure_has_a_source(name: str) -> None:
    device = CARDS[name]
    assert fields(device) == device.sources.keys()
    for field, text in device.sources.items():
        assert " " in text, (field, text)  # a text, and no id that [sources] does not have


@pytest.mark.parametrize("name", CARDS)
def test_sources_state_units(name: str) -> None:
    sources = CARDS[name].sources
    for field, text in sources.items():
        if field.startswith("tflops."):
            assert re.search(r"FLOPs? a cycle|FLOP/s|TOP/s", text), (field, text)
            assert "dense" in text, (field, text)
    assert re.search(r"[GT]B/s", sources["bandwidth"]), sources["bandwidth"]
    assert re.search(r"\b(MiB|GiB|TB)\b", sources["memory"]), sources["memory"]
    assert "watts" not in sources or re.search("watts", sources["watts"])
    assert "caches" not in sources or re.search(r"[GT]B/s|the H100's", sources["caches"])


@pytest.mark.parametrize("name", [name for name, device in CARDS.items() if device.link])
def test_links_are_one_direction_of_what_their_source_states(name: str) -> None:
    link, text = CARDS[name].link, CARDS[name].sources["link"]
    assert link is not None
    stated = re.search(r"([\d.]+) GB/s in one direction", text)
    assert stated, text
    assert link.bandwidth == float(stated[1]) * 1e9
    both = re.search(r"(\d+) GB/s both ways, \d+ GB/s in one direction", text)
    assert not both or link.bandwidth == float(both[1]) * 1e9 / 2


@pytest.mark.parametrize("name", [name for name, device in CARDS.items() if device.host_link])
def test_links_to_the_host_are_one_direction_too(name: str) -> None:
    device = CARDS[name]
    stated = re.search(r"([\d.]+) GB/s in one direction", device.sources.get("host_link") or device.sources["link"])
    assert stated
    assert device.host_link == float(stated[1]) * 1e9


@pytest.mark.parametrize("name", CARDS)
def test_figures_that_a_source_spells_out_are_the_cards(name: str) -> None:
    device = CARDS[name]
    stated = re.search(r"(\d[\d,.]*) GB/s", device.sources["bandwidth"])
    assert not stated or device.bandwidth == float(stated[1].replace(",", "")) * 1e9
    gib = re.search(r"(\d+) GiB$", device.sources["memory"])
    assert not gib or device.memory == float(gib[1]) * 2**30


@pytest.mark.parametrize("name", CARDS)
def test_formats_are_in_the_ratios_of_their_units(name: str) -> None:
    """Half the bits, twice the rate. The dense peak, that is: a sparse one among dense ones is seen here."""
    device = CARDS[name]
    for narrow, wide in NARROWER.items():
        if narrow in device.peaks and wide in device.peaks:
            ratio, text = device.peaks[narrow] / device.peaks[wide], device.sources[f"tflops.{narrow}"]
            if f"not twice {wide}" in text:
                assert not math.isclose(ratio, 2, rel_tol=0.1), (narrow, ratio)
            else:
                assert math.isclose(ratio, 2, rel_tol=0.03), (narrow, ratio)
    if "bf16" in device.peaks and "fp16" in device.peaks:
        assert device.peaks["fp16"] == device.peaks["bf16"]


@pytest.mark.parametrize("name", CARDS)
def test_memory_is_counted_in_binary(name: str) -> None:
    """A card of "16 GB" has 16 GiB less what its driver keeps; only sockets are filled with as many TB as one likes."""
    device = CARDS[name]
    assert device.kind == "cpu" or device.memory % 2**20 == 0
    size = re.search(r" (\d+)GB", device.title)
    if size and device.kind != "cpu":
        assert 0.89 * float(size[1]) * 2**30 < device.memory <= float(size[1]) * 2**30


@pytest.mark.parametrize(
    ("name", "mib"),
    [
        ("l40s", 46068), ("rtx-pro-6000-server", 97887), ("a100-sxm-80gb", 81920), ("h100-sxm", 81559),
        ("h800-sxm", 81559),
        ("mi300x", 196288), ("rtx-4080", 16376), ("rtx-4090", 24564), ("rtx-3090", 24576), ("rtx-3090-ti", 24564),
        ("rtx-3070", 8192), ("rtx-3060", 12288), ("rx-7900-xtx", 24560), ("mi325x", 262144), ("mi100", 32752),
        ("gaudi-2", 98304), ("tpu-v5e", 16128),
    ],
)  # fmt: skip
def test_memory_is_what_the_driver_shows(name: str, mib: int) -> None:
    assert CARDS[name].memory == mib * 2**20


@pytest.mark.parametrize("name", [name for name, device in CARDS.items() if device.kind == "cpu"])
def test_peaks_of_processors_are_cores_times_clock_times_operations_a_cycle(name: str) -> None:
    """Compare each peak with the factors that its source spells out."""
    device = CARDS[name]
    for number, peak in device.peaks.items():
        text = device.sources[f"tflops.{number}"]
        factors = re.search(r"(\d+) cores x ([\d.]+) GHz", text)
        assert factors, text
        operations = [int(count) for count in re.findall(r"(\d+) \(", text[factors.end() :])]
        assert any(
            math.isclose(peak, int(factors[1]) * float(factors[2]) * 1e9 * each, rel_tol=0.005) for each in operations
        ), (number, text)


@pytest.mark.parametrize("name", [name for name, device in CARDS.items() if device.kind == "cpu"])
def test_shares_of_processors_are_those_of_their_instructions(name: str) -> None:
    """Check that a narrower format is no slower by its own instructions, and attention no better than products.

    The kernels of NEON and AVX2 were never timed, so all formats of these processors share the constants of their kind.
    """
    device = CARDS[name]
    shares = {number: device.efficiency_of("linear", number).compute for number in ("fp32", "bf16", "int8")}
    rates = [device.peak(number) * share for number, share in shares.items()]
    assert rates == sorted(rates)
    timed = "linear" in device.sources["efficiency"]
    assert len(set(shares.values())) == (len(shares) if timed else 1)
    assert timed == any(word in device.sources["tflops.fp32"] for word in ("AVX-512", "AVX512", "VNNI"))
    for number in ("fp32", "bf16"):
        assert device.efficiency_of("attention.prefill", number).compute <= shares[number]


def test_apple_gpus_compute_halves_at_the_rate_of_singles() -> None:
    apple = [device for device in CARDS.values() if device.title.startswith("Apple")]
    assert len(apple) >= 5
    for device in apple:
        assert device.peaks["fp32"] == device.peaks["fp16"] == device.peaks["bf16"]


def test_prices_perish_and_are_not_the_cards() -> None:
    assert [device.name for device in CARDS.values() if device.price] == []  # prices.toml has them


def test_efficiency_sets_are_of_kernels_never_of_whole_runs() -> None:
    for device in CARDS.values():
        text = device.sources["efficiency"]
        assert re.search(r"kernel|MUL_MAT|class default", text), text
        assert not re.search(r"tok/s|tokens a second|TTFT|TPOT", text), text
