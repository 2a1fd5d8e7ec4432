"""The line that is logged every ten seconds."""

import asyncio
import logging

import msgspec
import pytest

from ridgeline.server.service import Service
from ridgeline.server.telemetry.throughput import ThroughputLog
from server.scripted import Gate, Scripted, consume, live, turn


def served() -> tuple[Scripted, Service, ThroughputLog]:
    llm = Scripted()
    throughput = ThroughputLog(llm)
    service = Service(llm, Gate(), [throughput])  # type: ignore[arg-type]
    service.step_observers.append(throughput.stepped)
    return llm, service, throughput


async def _one_request(llm: Scripted, service: Service) -> None:
    task = asyncio.create_task(consume(service, live("a", 40)))
    await turn()
    llm.step([(1, 0, 16, 24)], 1, 2, 1.5, output_tokens=1, running=1, waiting=3, held_pages=25)
    llm.token(1, 3, None, cached=16)
    llm.step([(1, 0, 40, 1)], 3, 2, 1.7, output_tokens=2)
    llm.token(1, 5, None, end=2)
    await task


def test_the_line_in_vllms_words_and_the_steps_prediction(caplog: pytest.LogCaptureFixture) -> None:
    llm, service, throughput = served()
    asyncio.run(_one_request(llm, service))
    with caplog.at_level(logging.INFO):
        throughput.say(10)
    assert caplog.messages == [
        "Engine 000: Avg prompt throughput: 4.0 tokens/s, Avg generation throughput: 0.2 tokens/s, Running: 1 reqs, "
        "Waiting: 3 reqs, KV cache usage: 25.0%, Prefix cache hit rate: 40.0%, "
        "Predicted step time: 80% of measured"
    ]
    assert caplog.records[0].__dict__["fields"]["generation_throughput"] == pytest.approx(0.2)


def test_what_there_is_room_for_is_said_first_as_vllm_says_it(caplog: pytest.LogCaptureFixture) -> None:
    _, _, throughput = served()
    with caplog.at_level(logging.INFO):
        throughput.begin()
    assert caplog.messages == [
        "KV cache: 1,600 tokens (256 KiB)",
        "Maximum concurrency for 1,000 tokens per request: 1.60x",
        "Predicted step times are those of scripted card",
    ]


def test_a_model_with_states_has_no_number_of_tokens(caplog: pytest.LogCaptureFixture) -> None:
    """Its words instead, and why nothing of a prefix is found; a model that keeps nothing has no size."""
    llm = Scripted()
    for info in (
        msgspec.structs.replace(llm.info, held="9 bytes a token, and a state of 7", unshared="there are states"),
        msgspec.structs.replace(llm.info, held="", concurrency=0.0, unshared="layers store nothing"),
    ):
        llm.info = info
        with caplog.at_level(logging.INFO):
            ThroughputLog(llm).begin()
    device = "Predicted step times are those of scripted card"
    assert caplog.messages == [
        "KV cache: 9 bytes a token, and a state of 7 (256 KiB)",
        "Maximum concurrency for 1,000 tokens per request: 1.60x",
        *("The prefix cache is off: there are states", device),
        *("The prefix cache is off: layers store nothing", device),
    ]


@pytest.mark.parametrize(
    ("calibrated", "priced", "said"),
    [
        (True, False, "Predicted step times are those of a machine"),
        (False, False, "Predicted step times are those of a machine (not calibrated: ridgeline calibrate)"),
        (False, True, "Predicted step times are those of a machine"),
    ],
)
def test_whose_step_times_are_predicted_is_said_once(
    caplog: pytest.LogCaptureFixture, calibrated: bool, priced: bool, said: str
) -> None:
    """A priced server's steps take what is predicted, on no machine that could be calibrated."""
    llm = Scripted()
    llm.info = msgspec.structs.replace(llm.info, device="a machine", calibrated=calibrated)
    with caplog.at_level(logging.INFO):
        ThroughputLog(llm, priced=priced).begin()
    assert caplog.messages[2:] == [said]


def test_between_which_factors_steps_are_expected(caplog: pytest.LogCaptureFixture) -> None:
    llm = Scripted()
    llm.info = msgspec.structs.replace(llm.info, predicted_intervals={"prefill": (0.7, 1.4), "decode": (0.9, 1.2)})
    with caplog.at_level(logging.INFO):
        ThroughputLog(llm).begin()
    assert caplog.messages[2:] == [
        "Predicted step times are those of scripted card; 8 of 10 measured steps are expected at: prefill x 0.70 to x "
        "1.40, decode x 0.90 to x 1.20"
    ]


def test_a_stale_calibration_is_logged_with_what_changed(caplog: pytest.LogCaptureFixture) -> None:
    llm = Scripted()
    stale = (
        "the calibration file c.json is out of date: it was measured with torch 1 (now 2); run `ridgeline calibrate`"
    )
    llm.info = msgspec.structs.replace(llm.info, device="a machine", calibrated=False, stale_calibration=stale)
    with caplog.at_level(logging.INFO):
        ThroughputLog(llm).begin()
    assert caplog.messages[2:] == [f"Predicted step times are those of a machine (not calibrated: {stale})"]


def test_an_idle_engine_says_so_once() -> None:
    llm, service, throughput = served()
    assert throughput.line(10) is None
    asyncio.run(_one_request(llm, service))
    lines = [throughput.line(10) for _ in range(3)]
    assert lines[0] is not None
    assert lines[0]["prompt_throughput"] == 4
    assert lines[1] is not None
    assert (lines[1]["prompt_throughput"], lines[1]["generation_throughput"]) == (0, 0)
    assert lines[1]["predicted_share"] is None
    assert lines[2] is None
