"""The load generator against servers that are known exactly, in virtual time: every figure is compared with one that
was worked out by hand, to the nanosecond."""

import asyncio
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.virtual import CUT, DONE, END, MS, FakeServer, Script, VirtualClock, frame, play, text, tokens, usage
from ridgeline.insight.bench.bench_run import BenchRun, run_of
from ridgeline.insight.bench.client_pool import ClientResult
from ridgeline.insight.bench.job import LoadJob, LoadPattern, LoadTarget, PromptDataset
from ridgeline.insight.bench.load_generator import LoadGenerator, arrival_times
from ridgeline.insight.bench.prompt_sources import open_prompts
from ridgeline.insight.bench.request_sender import RequestSender
from ridgeline.insight.traffic.slo import SLO, parse_slo

SECOND = 1000 * MS
Answers = Callable[[Mapping[str, Any], int], tuple[int, Script]]


SHORT = PromptDataset(input="4", output="3")


def job(load: LoadPattern, data: PromptDataset = SHORT, **target: Any) -> LoadJob:
    return LoadJob(LoadTarget("http://fake", "m", **{"timeout": 100.0, **target}), data, load)


def played(
    asked: LoadJob, answers: Answers, at_once: int | None = None, handing_over: int = 0, slo: SLO | None = None
) -> tuple[BenchRun, FakeServer]:
    """A run against a fake server, and what that saw."""

    async def scene(clock: VirtualClock) -> tuple[BenchRun, FakeServer]:
        server = FakeServer(clock, answers, at_once, handing_over)
        load = LoadGenerator(asked, open_prompts(asked.data), RequestSender(server, clock, 0, asked.target.timeout))
        await load.run()
        return run_of(asked, [ClientResult(load.records, load.stopped, 0.0, 1.0)], slo), server

    return play(scene)


def always(count: int = 3, first: int = 40 * MS, gap: int = 10 * MS, status: int = 200) -> Answers:
    return lambda fields, number: (status, tokens(count, first, gap))


# -- every metric -----------------------------------------------------------------------------------------------------


def test_metrics_of_a_server_of_known_times() -> None:
    """TTFT of 40 ms, gaps of 10, 5 tokens; ten a second, evenly, so that two are never under way."""
    run, server = played(job(LoadPattern(arrivals="constant", rate=10.0, requests=50)), always(5))
    assert server.moments == [100 * MS * (place + 1) for place in range(50)]
    assert {(r.ttft, r.service_ttft, r.tpot, r.e2e, r.queue_delay, r.lateness) for r in run.records} == {
        (40 * MS, 40 * MS, 10 * MS, 80 * MS, 0, 0)
    }
    assert {tuple(r.gaps) for r in run.records} == {(10 * MS,) * 4}
    assert {(r.input, r.output, r.counted, r.outcome, r.status) for r in run.records} == {(7, 5, True, "ok", 200)}
    assert run.summary.duration == 4.98
    assert run.summary.tokens_per_second == 250 / 4.98
    assert run.summary.requests_per_second == 50 / 4.98
    itl = run.summary.latencies["ITL"]
    assert itl is not None
    assert (itl.count, itl.mean, itl.least, itl.most) == (200, pytest.approx(0.01), 0.01, 0.01)
    assert run.offered == pytest.approx(10.0)


def test_waiting_for_a_free_place_is_in_ttft() -> None:
    """The case of vllm#54101: 500 ms a request, one under way at a time, eight of them at ten a second. Who counts from
    the sending says 500 ms; each waits 400 ms more than the one before, so that it is 1,900 on average."""
    load = LoadPattern(arrivals="constant", rate=10.0, requests=8, most_under_way=1)
    run, server = played(job(load), lambda fields, number: (200, [(500 * MS, text() + END + DONE)]))
    assert server.most_under_way == 1
    assert [r.service_ttft for r in run.records] == [500 * MS] * 8
    assert [r.ttft for r in run.records] == [500 * MS + 400 * MS * place for place in range(8)]
    assert [r.queue_delay for r in run.records] == [400 * MS * place for place in range(8)]
    assert {r.lateness for r in run.records} == {0}  # the cap was asked for: the generator is not to blame
    ttft = run.summary.latencies["TTFT"]
    assert ttft is not None
    assert ttft.mean == pytest.approx(1.9)


def test_a_queue_in_the_server_is_the_same_to_who_asks() -> None:
    """Open loop: all are sent in time, whatever becomes of those before."""
    run, server = played(
        job(LoadPattern(arrivals="constant", rate=4.0, requests=20)),
        lambda fields, number: (200, [(500 * MS, text() + END + DONE)]),
        at_once=1,
    )
    assert server.moments == [250 * MS * (place + 1) for place in range(20)]
    assert [r.ttft for r in run.records] == [500 * MS + 250 * MS * place for place in range(20)]


def test_what_the_client_takes_is_its_own_lateness() -> None:
    """5 ms to hand a request over, of which it soon learns to begin 2 earlier: the rest is in TTFT, in the queue delay
    and in lateness, not in the service."""
    run, _ = played(job(LoadPattern(arrivals="constant", rate=1.0, requests=30)), always(), handing_over=5 * MS)
    found = [(r.ttft, r.service_ttft, r.queue_delay, r.lateness) for r in run.records]
    assert set(found[:5]) == {(45 * MS, 40 * MS, 5 * MS, 5 * MS)}
    assert set(found[5:]) == {(43 * MS, 40 * MS, 3 * MS, 3 * MS)}
    assert run.summary.client_late  # 5 ms are more than 5 % of 43


def test_a_request_is_sent_when_it_was_intended_though_sending_takes_time() -> None:
    run, server = played(job(LoadPattern(arrivals="constant", rate=1.0, requests=30)), always(), handing_over=MS)
    assert server.moments == [SECOND * (place + 1) + (MS if place < 5 else 0) for place in range(30)]
    assert [r.lateness for r in run.records] == [MS] * 5 + [0] * 25
    assert not run.summary.client_late


def test_what_a_user_takes_to_ask_again_is_no_latency() -> None:
    """In a closed loop nothing is scheduled: 5 ms to hand a request over are in the rate, between ready and sent."""
    run, server = played(job(LoadPattern(users=1, requests=3)), always(), handing_over=5 * MS)
    assert server.moments == [5 * MS, 71 * MS, 137 * MS]
    assert [(r.ttft, r.lateness, r.ready, r.intended) for r in run.records] == [
        (40 * MS, 0, moment - 5 * MS, moment) for moment in server.moments
    ]


def test_a_role_chunk_is_no_token_and_a_count_at_the_end_no_latency() -> None:
    """It comes at once, the first token after 40 ms, the usage 500 ms after the last."""
    role = frame({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
    words = [frame({"choices": [{"delta": {"content": "x"}}]})] * 2
    ending = frame({"choices": [{"delta": {}, "finish_reason": "stop"}]}) + usage(7, 4, 3) + DONE
    script = [(0, role), (40 * MS, words[0]), (70 * MS, words[1]), (570 * MS, ending)]
    run, server = played(job(LoadPattern(users=1, requests=3), endpoint="chat"), lambda fields, number: (200, script))
    (record, *_) = run.records
    assert (record.ttft, record.e2e, record.tpot, record.output, record.cached) == (40 * MS, 70 * MS, 10 * MS, 4, 3)
    assert record.ended == 570 * MS
    assert run.records[1].intended == 570 * MS
    assert server.bodies[0]["messages"][0]["role"] == "user"


def test_tokens_nobody_counted_are_pieces_and_said_to_be() -> None:
    run, _ = played(
        job(LoadPattern(users=1, requests=2)), lambda fields, number: (200, [(MS, text()), (2 * MS, text() + DONE)])
    )
    assert [(r.output, r.counted, r.input) for r in run.records] == [(2, False, None)] * 2
    assert run.summary.counted == 0


# -- open and closed loops --------------------------------------------------------------------------------------------


def test_users_of_a_closed_loop_ask_again_at_once() -> None:
    """Three users, 60 ms a request and 1 for its end: 3 / 61 ms requests a second, never more than three."""
    run, server = played(job(LoadPattern(users=3, requests=30)), always())
    assert server.most_under_way == 3
    assert server.moments == sorted(61 * MS * (place // 3) for place in range(30))
    assert run.summary.duration == pytest.approx((61 * 9 + 60) / 1e3)
    assert run.steadiness is None


@pytest.mark.parametrize("users", [None, 2])
def test_a_run_ends_by_time(users: int | None) -> None:
    """What was sent before is waited for."""
    run, server = played(
        job(LoadPattern(users=users, arrivals="constant", rate=10.0, seconds=1.0)), always(3, 800 * MS)
    )
    assert all(moment < SECOND for moment in server.moments)
    assert len(server.moments) == (9 if users is None else 4)
    assert run.summary.counts["ok"] == run.summary.total == len(server.moments)


def test_conversations_carry_what_was_said_and_wait_while_one_thinks() -> None:
    data = PromptDataset(input="4", output="3", turns=3, think="constant:2s")
    run, server = played(
        job(LoadPattern(users=1, requests=2), data, endpoint="chat"), lambda f, n: (200, chat_answer(f"a{n}"))
    )
    assert [(r.session, r.turn) for r in run.records] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert [r.intended for r in run.records] == [0, 2010 * MS, 4020 * MS, 4030 * MS, 6040 * MS, 8050 * MS]
    asked = [[message["content"] for message in body["messages"]] for body in server.bodies]
    assert list(map(len, asked)) == [1, 3, 5, 1, 3, 5]
    assert asked[1] == [*asked[0], "a0", asked[1][-1]]
    assert asked[2] == [*asked[1], "a1", asked[2][-1]]


def chat_answer(word: str) -> Script:
    return [(10 * MS, frame({"choices": [{"delta": {"content": word}, "finish_reason": "stop"}]}) + DONE)]


def test_a_conversation_ends_with_a_failed_answer() -> None:
    data = PromptDataset(input="4", output="3", turns=3)
    run, _ = played(job(LoadPattern(users=1, requests=5, most_failed=1.0), data), lambda f, n: (200, [(MS, text())]))
    assert [r.turn for r in run.records] == [0] * 5


def test_processes_share_one_schedule() -> None:
    """Three processes send, together, what one would: the same prompts at the same moments, each once."""
    whole = job(
        LoadPattern(rate=20.0, requests=61, seed=5), PromptDataset(input="uniform:3:9", output="uniform:2:5", seed=5)
    )
    _, alone = played(whole, always())
    seen = []
    for rank in range(3):
        _, server = played(msgspec.structs.replace(whole, process=rank, processes=3), always())
        seen += list(zip(server.moments, (body["prompt"] for body in server.bodies), strict=True))
    assert sorted(seen) == list(zip(alone.moments, (body["prompt"] for body in alone.bodies), strict=True))
    assert len({prompt for _, prompt in seen}) == 61


def test_processes_share_users_and_places() -> None:
    whole = job(LoadPattern(users=7, requests=100))
    parts = [msgspec.structs.replace(whole, process=rank, processes=3) for rank in range(3)]
    most = [played(part, always())[1].most_under_way for part in parts]
    assert most == [3, 2, 2]


def test_a_trace_is_replayed_at_its_moments(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.5,5,2\n"
        "2023-11-16 18:15:47.0,6,3\n2023-11-16 18:15:50.5,7,4\n"
    )
    data = PromptDataset(kind="trace", path=str(path))
    run, server = played(job(LoadPattern(arrivals="trace", speed=2.0), data), always())
    assert server.moments == [0, 250 * MS, 2000 * MS]
    assert [len(body["prompt"].split()) for body in server.bodies] == [5, 6, 7]
    assert [body["max_tokens"] for body in server.bodies] == [2, 3, 4]
    assert (
        list(arrival_times(LoadPattern(arrivals="constant", rate=1.0), open_prompts(data).items()))[-1][0] == 3 * SECOND
    )
    assert run.summary.counts["ok"] == 3


# -- what goes wrong --------------------------------------------------------------------------------------------------


def test_what_fails_is_counted_by_its_reason() -> None:
    scripts: list[tuple[int, Script]] = [
        (200, tokens(3, 40 * MS, 10 * MS)),
        (429, [(MS, b'{"error": {"message": "full"}}')]),
        (503, [(MS, b"<html>")]),
        (400, [(MS, b'{"error": {"message": "too long", "type": "x"}}')]),
        (200, [(MS, text()), (2 * MS, text())]),
        (200, [(MS, text()), (2 * MS, CUT)]),
        (200, [(MS, text()), (2 * MS, frame({"error": {"message": "engine died"}}))]),
        (200, [(MS, b"data: hello\n\n")]),
        (200, [(MS, END + DONE)]),
        (200, [(MS, text()), (200 * SECOND, DONE)]),
    ]
    load = LoadPattern(arrivals="constant", rate=1.0, requests=10)
    run, _ = played(job(load), lambda fields, number: scripts[number])
    assert run.summary.counts == {"ok": 1, "rejected": 2, "failed": 7, "unfinished": 0}
    assert [record.reason for record in run.records] == [
        "", "HTTP 429: full", "HTTP 503", "HTTP 400: too long", "the stream ended before the response was complete",
        "the connection broke: ServerDisconnectedError", "an error in the stream: engine died",
        "a stream event that is not in OpenAI's format", "a response without content",
        "no complete response within 100 s",
    ]  # fmt: skip
    assert set(run.summary.reasons.values()) == {1}
    assert run.records[4].chunks == [5 * SECOND + MS, 5 * SECOND + 2 * MS]
    ttft = run.summary.latencies["TTFT"]
    assert ttft is not None
    assert ttft.count == 1
    assert run.records[-1].ended == 110 * SECOND


def test_a_run_that_fails_is_given_up_and_says_how_many_were_under_way() -> None:
    """From the twentieth on every answer is an error; at the next look more than a tenth have failed."""

    def answers(fields: Mapping[str, Any], number: int) -> tuple[int, Script]:
        return (200, tokens(3, 40 * MS, 10 * MS)) if number < 20 else (500, [(0, b"")])

    run, server = played(job(LoadPattern(arrivals="constant", rate=10.0, requests=10_000)), answers)
    assert re.fullmatch(r"(\d+) of the first (\d+) requests failed", run.stopped)
    assert len(server.moments) < 50
    counts = run.summary.counts
    assert counts["ok"] + counts["failed"] + counts["unfinished"] == len(run.records)


def test_rejections_alone_do_not_end_a_run() -> None:
    run, _ = played(job(LoadPattern(arrivals="constant", rate=10.0, requests=200)), lambda f, n: (429, [(0, b"")]))
    assert (run.stopped, run.summary.counts["rejected"]) == ("", 200)


def one_at_a_time(rate: float, seed: int) -> BenchRun:
    """Poisson arrivals at a server that can do eight a second: M/D/1."""
    load = LoadPattern(rate=rate, requests=400, stop_overloaded=True, seed=seed)
    return played(job(load), always(1, 125 * MS), at_once=1)[0]


@pytest.mark.parametrize("seed", range(5))
def test_a_server_that_falls_behind_ends_a_run_that_was_to_end_so(seed: int) -> None:
    """At 12 a second long before the last, with what was under way counted; at 5 never."""
    run = one_at_a_time(12.0, seed)
    assert run.stopped == "the server falls behind"
    assert run.overloaded
    assert len(run.records) < 350
    assert run.summary.counts["unfinished"] > 0
    assert run.summary.total == len(run.records)
    steady = one_at_a_time(5.0, seed)
    assert (steady.stopped, steady.overloaded, steady.summary.counts["ok"]) == ("", False, 400)


def test_whoever_watches_may_give_it_up() -> None:
    async def scene(clock: VirtualClock) -> list[Any]:
        asked = job(LoadPattern(arrivals="constant", rate=10.0))
        load = LoadGenerator(
            asked, open_prompts(asked.data), RequestSender(FakeServer(clock, always()), clock, 0, 10.0)
        )
        task = asyncio.create_task(load.run())
        await asyncio.sleep(1.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return load.records

    records = play(scene)
    assert [record.outcome for record in records] == ["ok"] * 9 + ["unfinished"]


# -- goodput, bodies --------------------------------------------------------------------------------------------------


def test_goodput_of_a_server_that_is_slow_every_fourth_time() -> None:
    def answers(fields: Mapping[str, Any], number: int) -> tuple[int, Script]:
        return 200, tokens(5, 40 * MS, 30 * MS if number % 4 == 3 else 10 * MS)

    load = LoadPattern(arrivals="constant", rate=10.0, requests=40)
    run, _ = played(job(load), answers, slo=parse_slo("ttft=40ms,tpot=20ms"))
    goodput = run.summary.goodput
    assert goodput is not None
    assert (goodput.good, goodput.missed, goodput.unknown) == (30, 10, 0)
    assert goodput.rate == 30 / run.summary.duration


def test_a_body_says_what_was_asked_for() -> None:
    asked = job(LoadPattern(users=1, requests=1), ignore_eos=True, more={"top_k": 3})
    _, server = played(asked, always())
    (body,) = server.bodies
    assert body.pop("prompt").count(" ") == 3
    assert body == {
        "model": "m", "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 3, "ignore_eos": True,
        "temperature": 0.0, "top_k": 3,
    }  # fmt: skip
