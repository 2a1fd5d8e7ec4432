"""Who is let into the queue, on a clock of the test's."""

import asyncio
from dataclasses import replace

import pytest

from ridgeline.server.admission import MAX_RETRY_SECONDS, RequestQueue
from ridgeline.server.errors import ApiError
from ridgeline.server.in_flight import InFlightRequest
from ridgeline.server.server_settings import ServerSettings
from ridgeline.server.service import Service
from server.scripted import INFO, Gate, Scripted, consume, live

SETTINGS = ServerSettings(queued_requests=3, queued_tokens=100)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def request(tokens: int = 1, n: int = 1, begun: bool = False) -> InFlightRequest:
    made = live("some request", tokens, n=n)
    made.begun = begun
    return made


def refusal(queue: RequestQueue, of: InFlightRequest) -> ApiError:
    with pytest.raises(ApiError) as error:
        queue.admit(of)
    return error.value


def test_the_defaults_follow_from_the_engine() -> None:
    queue = RequestQueue(INFO, ServerSettings())
    assert queue.capacity == INFO.requests + 4 * INFO.requests
    assert queue.tokens == 2 * INFO.capacity


def test_places_are_those_of_the_engine_and_of_the_queue_and_are_given_back(clock: Clock) -> None:
    queue = RequestQueue(INFO, SETTINGS, clock)
    inside = [request(begun=True) for _ in range(INFO.requests + 3)]
    for each in inside:
        queue.admit(each)
    error = refusal(queue, request())
    assert (error.status, error.code, error.kind) == (429, "queue_full", "rate_limit_error")
    queue.leave(inside.pop())
    queue.admit(request())
    assert refusal(queue, request()).code == "queue_full"


def test_each_choice_takes_a_place(clock: Clock) -> None:
    queue = RequestQueue(INFO, SETTINGS, clock)
    queue.admit(request(n=8))
    assert refusal(queue, request(n=4)).code == "queue_full"
    queue.admit(request(n=3))


def test_more_choices_than_places_are_not_sent_away_to_come_again(clock: Clock) -> None:
    """They never fit: trying again, as 429 asks for, would go on for ever."""
    queue = RequestQueue(INFO, SETTINGS, clock)
    queue.admit(live("as many as fit", 1, prompts=queue.capacity))
    error = refusal(queue, live("one too many", 1, prompts=queue.capacity + 1))
    assert (error.status, error.code) == (400, "too_many_choices")
    assert f"queues at most {queue.capacity}" in error.message


def test_prompt_tokens_count_while_they_wait(clock: Clock) -> None:
    queue = RequestQueue(INFO, SETTINGS, clock)
    first = request(60)
    queue.admit(first)
    error = refusal(queue, request(41))
    assert (error.status, error.code) == (429, "queue_tokens")
    first.begun = True
    queue.admit(request(41))
    queue.admit(request(59))


def test_a_prompt_beyond_the_bound_is_let_in_when_nothing_waits(clock: Clock) -> None:
    """Else it could never run."""
    queue = RequestQueue(INFO, SETTINGS, clock)
    queue.admit(request(1000))
    assert refusal(queue, request(1)).code == "queue_tokens"


def test_a_refused_request_takes_nothing(clock: Clock) -> None:
    queue = RequestQueue(INFO, replace(SETTINGS, queued_tokens=10), clock)
    queue.admit(request(10))
    for _ in range(100):
        refusal(queue, request(1))
    queue.admit(request(0))


def test_retry_after_spreads_those_sent_away_as_places_become_free(clock: Clock) -> None:
    """Requests leave every 2 seconds: the first of those sent away may come in 2 s, the next in 4 s, and so on."""
    queue = RequestQueue(INFO, SETTINGS, clock)
    inside = [request(begun=True) for _ in range(INFO.requests + 3)]
    for each in inside:
        queue.admit(each)
    for _ in range(4):
        queue.leave(inside.pop(0))
        inside.append(request(begun=True))
        queue.admit(inside[-1])
        clock.now += 2.0
    told = [int(refusal(queue, request()).headers["Retry-After"]) for _ in range(5)]
    assert told == [2, 4, 6, 8, 10]
    clock.now += 6.0
    assert [refusal(queue, request()).headers["Retry-After"] for _ in range(100)][-1] == str(MAX_RETRY_SECONDS)


def test_retry_after_is_a_second_where_nothing_is_known_and_never_less(clock: Clock) -> None:
    queue = RequestQueue(INFO, SETTINGS, clock)
    inside = [request(begun=True) for _ in range(INFO.requests + 3)]
    for each in inside:
        queue.admit(each)
    assert refusal(queue, request()).headers["Retry-After"] == "1"
    for _ in range(8):
        clock.now += 0.001
        queue.leave(inside.pop(0))
        inside.append(request(begun=True))
        queue.admit(inside[-1])
    clock.now += 5
    assert int(refusal(queue, request()).headers["Retry-After"]) >= 1


def test_a_server_that_is_to_end_lets_nobody_in(clock: Clock) -> None:
    queue = RequestQueue(INFO, SETTINGS, clock)
    queue.draining = True
    error = refusal(queue, request())
    assert (error.status, error.code) == (503, "shutting_down")


@pytest.mark.parametrize(
    ("limit", "begun", "code"), [("queue_seconds", False, "queue_timeout"), ("total_seconds", True, "total_timeout")]
)
def test_limits_of_time_hold_though_the_engine_says_nothing(limit: str, begun: bool, code: str) -> None:
    async def run() -> ApiError:
        service = Service(Scripted(), Gate(), **{limit: 0.01})  # type: ignore[arg-type]
        asked = request(begun=begun)
        with pytest.raises(ApiError) as error:
            await asyncio.wait_for(consume(service, asked), 10)
        assert not service.live
        return error.value

    assert asyncio.run(run()).code == code


def test_a_request_whose_first_step_runs_does_not_wait_any_more() -> None:
    """However long that step takes: nothing is said of it before it ends. Trying again would take as long."""

    async def run() -> None:
        llm = Scripted()
        service = Service(llm, Gate(), queue_seconds=0.01)  # type: ignore[arg-type]
        task = asyncio.create_task(consume(service, request()))
        await asyncio.sleep(0)
        llm.begun[1]()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(task), 0.1)
        task.cancel()

    asyncio.run(run())


def test_a_request_that_has_begun_does_not_wait_any_more() -> None:
    async def run() -> None:
        service = Service(Scripted(), Gate(), queue_seconds=0.01)  # type: ignore[arg-type]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(consume(service, request(begun=True)), 0.1)

    asyncio.run(run())
