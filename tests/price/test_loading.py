"""A cold start: bytes over a disk's bandwidth and over a card's link to its host, at once or one after the other."""

import pytest

from ridgeline.core.checkpoint import read_config
from ridgeline.price.cold_start import Disk, cold_start, disks
from ridgeline.price.devices import load_device
from ridgeline.price.plan import Deployment, DeploymentPlan, PlanWorkload, make_plan

DISK = Disk("slow", "a slow disk", 2e9, "")


def planned(card: str, devices: int = 1) -> DeploymentPlan:
    return make_plan("8B", read_config("llama-3-8b"), Deployment(load_device(card), devices), PlanWorkload(), ())


def test_floor_is_the_longer_part_and_in_turn_their_sum() -> None:
    start = cold_start(10e9, 8e9, DISK, host_link=16e9)
    assert (start.read, start.copy) == (5.0, 0.5)
    assert (start.overlapped, start.sequential) == (5.0, 5.5)
    narrow = cold_start(10e9, 8e9, DISK, host_link=1e9)
    assert (narrow.overlapped, narrow.sequential) == (8.0, 13.0)


def test_a_part_that_is_not_needed_takes_nothing_and_one_that_is_not_known_is_not_told() -> None:
    assert cold_start(10e9, 8e9, None, host_link=16e9).overlapped == 0.5
    mapped = cold_start(10e9, 0, DISK)
    assert (mapped.copy, mapped.overlapped, mapped.sequential) == (0.0, 5.0, 5.0)
    assert cold_start(10e9, 8e9, DISK).copy is None


def test_disks_are_facts_the_fastest_first() -> None:
    speeds = [disk.bandwidth for disk in disks()]
    assert speeds == sorted(speeds, reverse=True)
    assert len(speeds) >= 4
    for disk in disks():
        assert f"{round(disk.bandwidth / 1e6):,} MB/s" in disk.source or (
            f"{round(disk.bandwidth / 2**20):,} MiB/s" in disk.source
        )


@pytest.mark.parametrize("devices", [1, 4])
def test_a_plan_reads_all_weights_once_and_copies_each_card_its_own(devices: int) -> None:
    plan = planned("h100-sxm", devices)
    cached, *cold = plan.loading.values()
    assert cached.read == 0
    assert cached.copy == plan.memory.weights / 64e9
    assert cached.copy == pytest.approx(16.06e9 / 64e9 / devices, rel=0.02)  # norms are whole on every card
    for start, disk in zip(cold, disks(), strict=True):
        assert start.read == plan.whole.nbytes / disk.bandwidth
        assert start.copy == cached.copy


def test_a_processor_uses_weights_where_they_are() -> None:
    assert [start.copy for start in planned("epyc-9654").loading.values()] == [0.0] * (1 + len(disks()))


def test_cards_on_pcie_have_it_as_their_link_to_the_host() -> None:
    assert load_device("l40s").host_link == 32e9
    assert load_device("h100-sxm").host_link == 64e9
    assert load_device("tpu-v5e").host_link is None
