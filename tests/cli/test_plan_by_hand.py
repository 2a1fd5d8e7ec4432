"""Three lines of a comparison, computed again by hand: memory, users, the decode step, the replicas and the price."""

import math
from dataclasses import dataclass

import pytest

from cli.running import Run

WORKLOAD = ("--input", "2k", "--output", "500", "--slo", "ttft=1s,tpot=40ms", "--seller", "verda")
LAYERS, HEADS, WIDTH = 64, 8, 128
MATRICES, EMBEDDING = 31.2056e9, 0.7779e9  # parameters of all layers; of the embedding, and of the head again
OUTPUT, TOKENS = 500, 2048 + 250


@dataclass(frozen=True)
class Case:
    """A deployment of qwen3-32b, with the figures of its hardware and formats."""

    device: str
    devices: int
    weights: str
    kv: str
    weight_bytes: float
    """Bytes per parameter of the layers' matrices."""
    kv_bytes: float
    """Bytes of a head's key or value."""
    bandwidth: float
    replicas: int
    dollars: float


CASES = (
    Case("h100-sxm", 1, "fp8", "fp8", 1, WIDTH, 3.350e12, 3, 6.87),
    Case("h100-sxm", 2, "bf16", "bf16", 2, 2 * WIDTH, 3.350e12, 3, 13.74),
    Case("a100-sxm-80gb", 2, "w8a8", "int8", 1, WIDTH + 2, 2.039e12, 4, 10.32),
)


@pytest.mark.parametrize("case", CASES, ids=[f"{case.devices} x {case.device}" for case in CASES])
def test_a_deployment_is_what_products_and_sums_give(ridgeline: Run, case: Case) -> None:
    words = ("--device", case.device, "--devices", str(case.devices), "--weights", case.weights, "--kv", case.kv)
    told = ridgeline("plan", "qwen3-32b", *words, *WORKLOAD, "--users", "200", "--json").json
    memory, load, users = told["memory"], told["load"]["most"], told["answer"]["users"]

    weights = (MATRICES * case.weight_bytes + 2 * EMBEDDING * 2) / case.devices
    assert memory["weights"] == pytest.approx(weights, rel=0.005)
    token = LAYERS * 2 * HEADS / case.devices * case.kv_bytes
    assert memory["kv_bytes_per_token"] == token
    left = memory["total"] * 0.9 - memory["weights"] - memory["activations"] - memory["overhead"]
    assert memory["left"] == pytest.approx(left)
    assert memory["users"] == pytest.approx(left / (token * TOKENS), rel=0.01)

    read = weights - 2 * EMBEDDING / case.devices + users * token * TOKENS
    assert load["itl"]["floor"] == pytest.approx(read / case.bandwidth, rel=0.01)
    prompt = told["answer"]["ttft"]["expected"]
    tpot = load["itl"]["expected"] + users / OUTPUT * prompt
    assert load["tpot"]["expected"] == pytest.approx(tpot, rel=0.015)
    assert load["tpot"]["expected"] <= 0.040

    even = told["queue"]["even_arrivals"]
    assert even["replicas"] == math.ceil(200 / users) == case.replicas
    assert even["dollars_per_hour"] == pytest.approx(case.dollars)


def test_the_comparison_has_these_deployments(ridgeline: Run) -> None:
    words = ("--compare-devices", "h100-sxm,a100-sxm-80gb", *WORKLOAD, "--users", "200", "--json")
    told = ridgeline("plan", "qwen3-32b", *words).json
    (seller,) = (each for each in told["sellers"] if each["seller"].startswith("Verda"))
    found = [*told["cards"][: seller["cards"]], seller["as_stored"]]
    fleets = {(card["card"], card["devices"]): (card["weights"], card["kv"], card["fleet"]) for card in found}
    for case in CASES:
        weights, kv, fleet = fleets[case.device, case.devices]
        assert (weights, kv, fleet["replicas"]) == (case.weights, case.kv, case.replicas)
        assert fleet["dollars_per_hour"] == pytest.approx(case.dollars)


def test_a_batch_job_is_what_products_and_sums_give(ridgeline: Run) -> None:
    words = ("--requests", "1M", "--within", "8h", "--input", "2k", "--output", "100", "--device", "h100-sxm")
    told = ridgeline("plan", "qwen3-8b", *words, "--seller", "nebius", "--json").json
    memory, load, job = told["memory"], told["load"]["most"], told["fleet"]["job"]
    assert memory["users"] == pytest.approx(memory["left"] / ((2048 + 50) * memory["kv_bytes_per_token"]), rel=0.01)

    users, prompt, step = load["users"], told["answer"]["ttft"]["expected"], load["itl"]["expected"]
    rate = users / (99 * step + users * prompt)
    assert load["requests_per_second"]["expected"] == pytest.approx(rate, rel=0.01)
    half = ridgeline("plan", "qwen3-8b", *words, "--batch", str(users // 2), "--json").json["decode"]["seconds"]
    end = 99 * (half["expected"] - step / 2)
    assert end == pytest.approx(0.31, abs=0.01)
    start = memory["weights"] / 6.8e9
    assert job["start"] == pytest.approx(start)

    hours = {replicas: (start + 1e6 / replicas / rate + end) / 3600 for replicas in (2, 3)}
    assert hours[2] > 8 > hours[3]
    assert (told["fleet"]["replicas"], job["seconds"]) == (3, pytest.approx(3600 * hours[3], rel=0.01))
    assert job["dollars"] == pytest.approx(3 * 2.95 * hours[3], rel=0.01)
