"""What Prometheus is told of a server of pictures, and what health is that of."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ridgeline.media.diffusion.pipeline import Pipeline
from ridgeline.media.diffusion.pipeline_loader import load_pipeline
from ridgeline.price.error_interval import error_intervals
from ridgeline.server.server_settings import ServerSettings
from ridgeline.server.telemetry.metric_families import HTTP_FAMILIES, IMAGE_FAMILIES, MODEL_LABELS, PREFIX
from server.pictures import ROUTE, Drawing, Held, drawing
from server.wire import eventually

FROZEN = Path(__file__).parent / "picture_metrics.json"
PICTURE = error_intervals()["image", "family"]  # an H100, in fp32, of which no kernel times are known
QUICK = {"prompt": "a cat", "size": "64x64", "num_inference_steps": 2, "guidance_scale": 0.0, "seed": 1}


@pytest.fixture(scope="module")
def pipeline(z_image_folder: Path) -> Pipeline:
    return load_pipeline(str(z_image_folder), threads=1)


@pytest.fixture
def up(pipeline: Pipeline) -> Iterator[Drawing]:
    with drawing({"tiny": pipeline}, ServerSettings(models=("tiny",), metrics_alias="vllm", queued_requests=2)) as up:
        yield up


def scrape(up: Drawing) -> dict[tuple[str, ...], float]:
    """Samples by their names and the values of labels other than the model's."""
    reply = up.get("/metrics")
    assert reply.status == 200
    found = {}
    for family in text_string_to_metric_families(reply.data.decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert sample.name.startswith("http") or labels.pop("model_name") == "tiny"
            labels.pop("engine", None)
            found[(sample.name.removeprefix(PREFIX), *labels.values())] = sample.value
    return found


def test_the_metrics_are_those_of_the_file() -> None:
    """Operators build on them: a change here is a change of theirs."""
    families = [
        {"name": prefix + family.name, "kind": family.kind, "labels": [*common, *family.labels]}
        for group, prefix, common in ((IMAGE_FAMILIES, PREFIX, MODEL_LABELS), (HTTP_FAMILIES, "", ()))
        for family in group
    ]
    assert families == json.loads(FROZEN.read_text())


def test_what_a_request_counts(up: Drawing) -> None:
    before = scrape(up)
    assert before[("step_seconds_count", "denoise")] == before[("images_total",)] == 0
    up.draw(**QUICK, n=2)
    after = scrape(up)
    phases = {phase: after[("step_seconds_count", phase)] for phase in ("encode", "denoise", "decode")}
    assert phases == {"encode": 1, "denoise": 2, "decode": 2}, "two pictures side by side"
    for phase in phases:
        assert after[("step_predicted_seconds_count", phase)] == phases[phase]
        assert after[("step_predicted_seconds_sum", phase)] > 0
        assert after[("step_seconds_sum", phase)] > 0
        low, high = (after[("predicted_interval_ratio", bound, phase)] for bound in ("low", "high"))
        assert (low, high) == (PICTURE.low, PICTURE.high)
    assert after[("images_total",)] == 2
    assert after[("request_success_total", "stop")] == 1
    assert after[("e2e_request_latency_seconds_count",)] == after[("request_queue_time_seconds_count",)] == 1
    assert after[("vllm:request_success_total", "stop")] == 1
    assert after[("http_requests_total", ROUTE, "POST", "2xx")] == 1


def test_requests_that_wait_run_are_refused_and_given_up(up: Drawing, pipeline: Pipeline) -> None:
    with Held(pipeline) as held:
        both = [threading.Thread(target=lambda: up.draw(**QUICK)) for _ in range(2)]
        both[0].start()
        assert held.begun.wait(30)
        both[1].start()
        assert eventually(lambda: len(up.service.live) == 2)
        now = scrape(up)
        assert (now[("num_requests_running",)], now[("num_requests_waiting",)]) == (1, 1)
        up.refusal(QUICK, 429)
        held.go.set()
        for thread in both:
            thread.join(30)
    up.refusal({**QUICK, "size": "1x1"})
    up.service.deadlines.total = 1e-3
    up.refusal({**QUICK, "n": 8}, 504)
    after = scrape(up)
    assert (after[("num_requests_running",)], after[("num_requests_waiting",)]) == (0, 0)
    assert after[("admission_rejected_total", "queue_full")] == 1
    assert after[("request_errors_total", "invalid_value")] == 1
    assert after[("request_success_total", "abort")] == 1
    assert sum(value for key, value in after.items() if key[0] == "aborted_total") == 1


def test_a_stride_that_hangs_shows(up: Drawing, pipeline: Pipeline) -> None:
    """Requests count as waiting in vain only when a stride is long past its price."""
    drawer = up.service.engine
    with Held(pipeline) as held:
        first = threading.Thread(target=lambda: up.draw(**QUICK))
        first.start()
        assert held.begun.wait(30)
        drawer._expected_by += 3600
        assert drawer.num_awaited == 0
        drawer._expected_by = 0.0
        assert drawer.num_awaited == 1
        held.go.set()
        first.join(30)
    assert eventually(lambda: drawer.num_awaited == 0)
