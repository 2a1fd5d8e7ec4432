"""Trust is what measurements of the very card say, class by class, and whose kernel times a price rests on."""

import pytest

from ridgeline.price.accuracy import AccuracyRow
from ridgeline.price.devices import catalogue_devices, load_device
from ridgeline.price.plan.trust import Trust, basis_of, class_of, describe_basis, describe_trust, trust_in
from support.planned import card

ROWS = (
    AccuracyRow("l40s", "vllm", "decode", 3, 2, 0.125, -0.2),
    AccuracyRow("l40s", "llama.cpp", "prefill", 1, 0, 0.40, 0.4),
    AccuracyRow("l40s", "gpt-fast", "prefill", 3, 2, 0.20, -0.5),
    AccuracyRow("a100-sxm-80gb", "vllm", "serving", 89, 88, 0.05, 0.1),
)


def test_rows_of_the_engine_count_before_those_of_others() -> None:
    assert trust_in("l40s", "vllm", "decode", ROWS) == Trust("decode", 3, 2, 0.125, -0.2)
    pooled = trust_in("l40s", "vllm", "prefill", ROWS)
    assert (pooled.rows, pooled.within, pooled.median, pooled.worst) == (4, 2, pytest.approx(0.25), -0.5)
    assert pooled.others == ("llama.cpp", "gpt-fast")
    assert str(pooled) == "25% off (4 measurements of llama.cpp, gpt-fast)"


def test_rows_of_another_card_say_nothing_of_this_one() -> None:
    """One sentence from 89 rows of an A100 was printed for an L40S."""
    found = [trust_in("l40s", "vllm", metric, ROWS) for metric in ("serving", "decode")]
    assert found[0] == Trust("serving", 0, 0, None, None)
    said = describe_trust(load_device("l40s"), found)
    assert said == "decode 12% off (3 measurements); kernel times measured on this device; no measurements of: serving"
    assert describe_trust(load_device("mi300x"), found[:1]) == (
        "no measurements on this device; no kernel times of this device: typical constants of its kind"
    )


def test_images_and_videos_are_called_so() -> None:
    """Check the text alone: the metric of accuracy.toml and of the JSON is `picture`."""
    row = AccuracyRow("l40s", "", "picture", 7, 3, 0.24, 0.4)
    said = describe_trust(load_device("l40s"), [trust_in("l40s", "", "picture", [row])])
    assert said == "images and videos 24% off (7 measurements); kernel times measured on this device"


def test_over_eight_cards_the_link_decides() -> None:
    assert [class_of(metric, 8) for metric in ("decode", "serving", "memory")] == ["tp8", "tp8", "memory"]
    assert [class_of(metric, 4) for metric in ("decode", "serving", "memory")] == ["decode", "serving", "memory"]


def test_whose_kernel_times_a_card_has() -> None:
    bases = {name: basis_of(load_device(name)) for name in ("l40s", "rtx-4090", "mi300x", "m4-max", "epyc-9654")}
    assert bases == {"l40s": "own", "rtx-4090": "alike", "mi300x": "kind", "m4-max": "kind", "epyc-9654": "kind"}
    assert (
        describe_basis(load_device("rtx-4090"))
        == "kernel times of rtx-3090-ti and rtx-5090, a device of the same family"
    )
    assert basis_of(card(calibrated=True)) == "calibrated"
    assert "a short probe of its peak rates" in describe_trust(card(basis="probe"), ())
    assert {basis_of(device) for device in catalogue_devices()} == {"own", "alike", "kind"}
