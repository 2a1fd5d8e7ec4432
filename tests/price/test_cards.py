"""The hardware catalogue: facts with sources, dense figures, and files of users that are refused in one line."""

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from ridgeline.price import device_aliases
from ridgeline.price.device import Device
from ridgeline.price.devices import catalogue_devices, device_names, load_device

CARDS = {device.name: device for device in catalogue_devices()}

MINE: dict[str, Any] = {
    "title": "Mine",
    "kind": "gpu",
    "tflops": {"bf16": 100},
    "bandwidth": 1000,
    "memory": {"gb": 80},
}


def test_there_are_enough_cards_of_every_sort() -> None:
    assert len(CARDS) >= 30
    assert {device.kind for device in CARDS.values()} == {"gpu", "cpu", "accelerator"}
    wanted = {"h100-sxm", "h200-sxm", "a100-sxm-80gb", "l40s", "rtx-4090", "mi300x", "gaudi-3", "tpu-v5e", "epyc-9654"}
    assert wanted <= CARDS.keys()
    assert device_names() == tuple(CARDS)


@pytest.mark.parametrize("name", CARDS)
def test_figures_are_of_the_right_size(name: str) -> None:
    """A unit slip (GB for GiB, G for T) is a factor of a thousand; these are wide of every real card."""
    device = CARDS[name]
    figures = [*device.peaks.values(), device.bandwidth, device.memory]
    assert all(math.isfinite(figure) and figure > 0 for figure in figures)
    assert 1e12 < max(device.peaks.values()) < 2e16
    assert 2e10 < device.bandwidth < 1e13
    assert 7e9 < device.memory < 1e13
    assert all(cache.bandwidth > device.bandwidth and cache.nbytes < 1e9 for cache in device.caches)
    classes = {"linear", "head", "attention.decode", "attention.prefill", "experts", "elementwise", "norm", "embedding"}
    assert classes | {"default"} <= device.efficiency.keys()
    assert all(0 <= e.launch < 1e-4 for e in device.efficiency.values())
    assert not device.calibrated


@pytest.mark.parametrize("name", CARDS)
def test_narrower_formats_are_no_slower(name: str) -> None:
    """Except INT8 on a B300 and GB300, which lost their units for it."""
    peaks = CARDS[name].peaks
    order = [n for n in ("fp4", "fp8", "bf16", "fp32") if n in peaks]
    assert [peaks[n] for n in order] == sorted((peaks[n] for n in order), reverse=True)
    if "fp16" in peaks and "bf16" in peaks:
        assert peaks["fp16"] == peaks["bf16"]
    if "int8" in peaks and name not in ("b300", "gb300"):
        assert peaks["int8"] >= peaks.get("bf16", peaks.get("fp16", 0))


def test_peaks_are_dense_and_accumulate_in_fp32() -> None:
    """The traps of published tables: twice the dense figure for 2:4 sparsity, twice again for fp16 accumulation."""
    dense = {
        "h100-sxm": 989, "h200-sxm": 989, "h100-pcie": 756.5, "a100-sxm-80gb": 312, "l40s": 362.05, "l4": 121,
        "b200": 2250, "gb200": 2500, "mi300x": 1307, "rtx-4090": 165.2, "rtx-5090": 209.6, "rtx-3090": 71,
    }  # fmt: skip
    for name, tera in dense.items():
        assert CARDS[name].peaks["bf16"] == tera * 1e12, name
    assert CARDS["h100-sxm"].peaks["fp8"] == 1979e12
    assert CARDS["b200"].peaks["fp4"] == 9e15
    assert CARDS["b300"].peaks["int8"] < CARDS["b300"].peaks["fp8"] / 20  # INT8 says nothing of FP8
    assert CARDS["gb200"].bandwidth < 13e12  # 13,400 GB/s is in circulation


def test_efficiency_says_how_far_it_can_be_trusted() -> None:
    assert "uncalibrated" not in CARDS["h100-sxm"].sources["efficiency"]
    assert "measured on h100-sxm, not on this device" in CARDS["h800-sxm"].sources["efficiency"]
    assert "class default, uncalibrated, +-50 %" in CARDS["mi300x"].sources["efficiency"]


def test_a_class_or_a_format_may_have_constants_of_its_own() -> None:
    a100, b200 = CARDS["a100-sxm-80gb"], CARDS["b200"]
    assert a100.efficiency_of("linear.vector").memory > a100.efficiency_of("linear.matrix").memory
    assert a100.efficiency_of("head.vector") == a100.efficiency_of("linear.vector")
    assert b200.efficiency_of("experts", "fp4") != b200.efficiency_of("experts", "bf16")
    assert CARDS["h100-sxm"].efficiency_of("head", "fp8") == CARDS["h100-sxm"].efficiency_of("linear", "fp8")


def test_what_was_cut_is_nearly_saturated() -> None:
    """An H20 has a seventh of the H100's arithmetic: its kernels leave less of it idle; so on GeForce, whose fp32
    accumulation is halved."""
    for name in ("h20", "rtx-4090", "rtx-3090"):
        assert CARDS[name].efficiency_of("linear", "bf16").compute > CARDS["h100-sxm"].efficiency_of("linear").compute
    assert CARDS["h100-sxm"].efficiency_of("norm") == CARDS["h100-sxm"].efficiency_of("elementwise")
    assert CARDS["h100-sxm"].efficiency_of("no such class") == CARDS["h100-sxm"].efficiency["default"]


def test_a_format_without_units_runs_at_the_next_wider_one() -> None:
    assert CARDS["a100-sxm-80gb"].peak("fp8") == 312e12
    assert CARDS["v100-sxm-32gb"].peak("bf16") == 15.7e12
    assert CARDS["tpu-v5e"].peak("fp32") == 197e12  # nothing wider is known: a roof it cannot beat
    with pytest.raises(ValueError, match="no peak FLOP/s for fp5"):
        CARDS["a100-sxm-80gb"].peak("fp5")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("a100", "name one of a100-sxm-80gb, a100-pcie-80gb, a100-sxm-40gb"),
        ("H100", "name one of h100-sxm, h100-pcie, h100-nvl"),
        ("rtx-4070", "similar names are rtx-4070-ti"),
        ("a100-80gb", "name one of a100-sxm-80gb, a100-pcie-80gb"),
        ("v100", "similar names are v100-sxm-32gb"),
        ("l40ss", "similar names are l40s"),
        ("zzzzzz", "see `ridgeline plan --list`"),
        ("", "unknown device ''"),
        ("nowhere/card.json", "cannot be read"),
    ],
)
def test_unknown_names_offer_the_nearest(name: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)) as caught:
        load_device(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("H100-SXM", "h100-sxm"), ("rtx4090", "rtx-4090"), ("4090", "rtx-4090"), ("GeForce RTX 4090", "rtx-4090"),
        ("L40S", "l40s"), ("l40", "l40"), ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"), ("a100-40gb", "a100-sxm-40gb"),
        ("h200", "h200-sxm"), ("M4 Max", "m4-max"), ("Tesla T4", "t4"), ("xeon 8480+", "xeon-8480-plus"),
        ("AMD Ryzen AI Max+ 395", "ryzen-ai-max-395"), ("Strix Halo", "ryzen-ai-max-395"),
        ("AI Max+ 395", "ryzen-ai-max-395"), ("Radeon 8060S", "ryzen-ai-max-395"), ("DGX Spark", "gb10"),
        ("NVIDIA GH200 480GB", "gh200"), ("NVIDIA Thor", "agx-thor-128gb"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000-ws"),
        ("AMD Radeon AI PRO R9700", "ai-pro-r9700"), ("AWS Graviton4", "graviton4"),
        ("Intel Arc Pro B70", "arc-pro-b70"), ("Jetson AGX Orin 64GB", "agx-orin-64gb"), ("AWS Trainium", "trainium1"),
    ],
)  # fmt: skip
def test_spellings_that_mean_one_card(spelling: str, name: str) -> None:
    assert load_device(spelling) == CARDS[name]


def test_other_names_mean_the_device_that_they_are_listed_for() -> None:
    for other, name in device_aliases.OTHER_NAMES.items():
        assert load_device(other) == CARDS[name]


def read(tmp_path: Path, values: object) -> Device:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(values))
    return load_device(str(path))


def test_a_file_has_the_same_fields(tmp_path: Path) -> None:
    device = read(tmp_path, MINE | {"price": {"dollars": 2, "date": "2026-01", "source": "me"}, "efficiency": "h100"})
    assert (device.name, device.peaks["bf16"], device.bandwidth, device.memory) == ("mine", 100e12, 1e12, 80e9)
    assert device.efficiency == CARDS["h100-sxm"].efficiency
    path = tmp_path / "ten-lines.toml"
    path.write_text(
        'title = "Mine"\nkind = "gpu"\ntflops = { bf16 = 100, fp8 = 200 }\nbandwidth = 1000\nmemory = { mib = 81559 }\n'
        'caches = [{ name = "L2", mib = 50, bandwidth = 5000 }]\n'
        'link = { name = "PCIe", bandwidth = 64, all_reduce = { 2 = [5, 20] } }\nwatts = 350\n'
        'price = { dollars = 1.5, date = "2026-02", source = "me" }\n'
        "efficiency = { default = [3, 0.8, 0.8], attention = [11, 0.6, 0.9] }\n"
    )
    device = load_device(str(path))
    assert device.link is not None
    for kind in ("custom", "nccl"):
        assert device.link.all_reduce_seconds(2**20, 2, kind) == pytest.approx(5e-6 + 2**20 / 20e9)
    assert device.efficiency_of("linear").launch == pytest.approx(3e-6)


def test_what_a_file_names_as_its_source_stands(tmp_path: Path) -> None:
    """A bill called `lambda` or `aws` was given out for what a catalogue of that name had asked."""
    stated = {"price": {"dollars": 2, "date": "2026-01", "source": "smi"}, "sources": {"all": "aic", "memory": "smi"}}
    device = read(tmp_path, MINE | stated)
    assert device.price is not None
    assert (device.price.source, device.price.asked_by, device.sources["price"]) == ("smi", "smi", "smi")
    assert (device.sources["bandwidth"], device.sources["memory"]) == ("aic", "smi")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"bandwidth": -1}, "bandwidth is -1; it must be a finite number above 0"),
        ({"bandwidth": float("nan")}, "bandwidth is nan"),
        ({"bandwidth": float("inf")}, "bandwidth is inf"),
        ({"bandwidth": 10**400}, "it must be a finite number above 0"),
        ({"bandwidth": True}, "bandwidth is True"),
        ({"bandwidth": "1000 GB/s"}, "bandwidth is '1000 GB/s'"),
        ({"bandwidth": None}, "bandwidth is None"),
        ({"tflops": {}}, "tflops is {}"),
        ({"tflops": {"bf16": 0}}, "tflops.bf16 is 0"),
        ({"tflops": {"fp17": 1}}, "unknown field tflops.fp17; did you mean fp16"),
        ({"tflops": 100}, "tflops is 100; it must be a table"),
        ({"memory": {"gb": 80, "mib": 81920}}, "as the driver shows it"),
        ({"memory": {"gib": 48}}, "unknown field memory.gib; write memory = { mib = 49152 }"),
        ({"memory": 48}, "memory is 48; it must be a table: { mib = 81559 } in MiB"),
        ({"memory": {"mib": 80}}, "memory.mib is 80; memory.mib is in MiB; did you mean 81920?"),
        ({"memory": {"gb": 80e9}}, "memory.gb is in GB; did you mean 80?"),
        ({"memory": {"gb": 1e15}}, "memory.gb is in GB; it must be from 0.25 to 50,000"),
        ({"bandwidth": 1e12}, "bandwidth is 1e+12; bandwidth is in GB/s; did you mean 1000?"),
        ({"bandwidth": 3.35}, "bandwidth is in GB/s; did you mean 3350?"),
        ({"tflops": {"bf16": 2e14}}, "tflops.bf16 is in TFLOP/s; did you mean 200?"),
        ({"tflops": {"bf16": 989e3}}, "tflops.bf16 is in TFLOP/s; did you mean 989?"),
        ({"link": {"name": "x", "bandwidth": 450e9}}, "link.bandwidth is in GB/s; did you mean 450?"),
        ({"cards": {"a": {}, "b": {}}}, "it must describe one device"),
        ({"bandwith": 1}, "unknown field bandwith; did you mean bandwidth"),
        ({"kind": "fpga"}, "kind is 'fpga'; it must be one of gpu, cpu, accelerator"),
        ({"title": 5}, "title is 5; it must be a non-empty string"),
        ({"caches": {"name": "L2"}}, "caches is"),
        ({"caches": [{"name": "L2", "mib": 50}]}, "caches.bandwidth is missing"),
        ({"link": {"name": "x", "bandwidth": 1, "all_reduce": {"one": [1, 1]}}}, "a number of devices, 2 or more"),
        ({"link": {"name": "x", "bandwidth": 1, "all_reduce": {"2": [1]}}}, "a list of 2 numbers"),
        ({"link": {"name": "x", "bandwidth": 1, "all_reduce": {"2": [1, 0]}}}, "the bandwidth in GB/s above 0"),
        ({"link": {"name": "x", "bandwidth": 1, "all_reduce": {"2": [[8, 5], [4, 6]]}}}, "both above 0 and rising"),
        ({"link": {"name": "x", "bandwidth": 1, "all_reduce": {"2": [[8, 5], [16]]}}}, "a list of 2 numbers"),
        (
            {"link": {"name": "x", "bandwidth": 1, "all_reduce": "h1000"}},
            "all_reduce is 'h1000'; it must be one of h100",
        ),
        ({"price": {"dollars": 1, "date": "2026"}}, "price.source is missing"),
        ({"efficiency": "h1000"}, "efficiency is 'h1000'; it must be one of"),
        ({"efficiency": {"linear": [3, 0.8, 0.8]}}, "efficiency.default is missing"),
        ({"efficiency": {"default": [3, 80, 0.8]}}, "shares above 0 and at most 1"),
        ({"efficiency": {"default": [3, 0.8, 0.8], "gemm": [1, 1, 1]}}, "unknown class efficiency.gemm"),
        ({"sources": {"watts": "sheet"}}, "sources.watts has no matching field"),
        ({"sources": {"memory": "sheet"}}, "is missing; state where the value is from"),
    ],
)
def test_bad_files_are_refused_in_one_line(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape(says)) as caught:
        read(tmp_path, MINE | change)
    assert "\n" not in str(caught.value)
    assert "mine.json" in str(caught.value)


@pytest.mark.parametrize("missing", ["title", "kind", "tflops", "bandwidth", "memory"])
def test_missing_fields_are_named(missing: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"missing: {missing} \("):
        read(tmp_path, {key: value for key, value in MINE.items() if key != missing})


def test_missing_fields_are_named_all_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="missing") as caught:
        read(tmp_path, {"name": "Mine", "tflops": {"bf16": 100}})
    said = str(caught.value)
    for part in (
        "title (a non-empty string)",
        "kind (gpu, cpu or accelerator)",
        "bandwidth (the bandwidth of its memory in GB/s)",
        "{ mib = 81559 }",
    ):
        assert part in said
    assert "tflops (" not in said
    assert "these are unknown: name" in said
    assert "\n" not in said


def test_the_file_of_the_documentation_is_a_card(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "plan.md").read_text(encoding="utf-8")
    blocks = dict(re.findall(r"```(toml|json)\n(.*?)```", text, re.S))
    read_as = []
    for suffix, body in (*blocks.items(), ("toml", f"[cards.my-card]\n{blocks['toml']}")):
        path = tmp_path / f"my-card.{suffix}"
        path.write_text(body)
        read_as.append(dataclasses.replace(load_device(str(path)), sources={}))
    assert read_as[0] == read_as[1] == read_as[2]
    assert read_as[0].name == "my-card"
    assert (read_as[0].memory, read_as[0].peaks["bf16"]) == (49140 * 2**20, 362e12)


def test_files_that_are_no_cards(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be a table of fields"):
        read(tmp_path, [1])
    (tmp_path / "broken.toml").write_text("title = ")
    with pytest.raises(ValueError, match="is not valid TOML"):
        load_device(str(tmp_path / "broken.toml"))
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="is not UTF-8 text"):
        load_device(str(tmp_path / "binary.json"))


def test_peaks_of_one_generation_have_nearly_the_same_clock() -> None:
    """Check the M4 family by its core counts, with 128 lanes of multiply-adds a core: one figure was 15 % too low."""
    clocks = {}
    for name in ("m4", "m4-pro", "m4-max"):
        device = load_device(name)
        cores = int(device.title.split("-core")[0].split()[-1])
        clocks[name] = device.peaks["fp32"] / (cores * 128 * 2)
    assert clocks["m4-pro"] == pytest.approx(1.578e9, rel=1e-3)
    assert max(clocks.values()) < 1.12 * min(clocks.values())
