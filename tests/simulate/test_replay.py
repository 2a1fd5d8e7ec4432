"""A recorded run of a real model decides, step by step, what a simulated one decides that is told lengths and names."""

import random
from dataclasses import dataclass, replace

import pytest
import torch

from engine.null_model import GREEDY
from engine.small_models import LLAMA, MIXED, small_model
from ridgeline.engine.engine_builder import build_engine
from ridgeline.engine.kv.page_count import kv_layout
from ridgeline.engine.runner import Runner
from ridgeline.engine.scheduler import Limits
from ridgeline.insight.simulate.engine_replay import RecordedRun, replay
from ridgeline.insight.simulate.replica import Machine
from support.planned import case

EOS = (38, 39, 40)
REQUESTS = 200
LONGEST = 150  # tokens of a prompt that is gone on with


@dataclass(frozen=True)
class Setting:
    """How an engine is set up, and what is asked of it. positions: that its KV memory holds. stems: prompts that begin
    alike. aborts: the chance that some request is aborted before a step. goes_on: that an answer is asked about."""

    config: dict[str, object]
    limits: Limits
    positions: int
    prefix_cache: bool = True
    stems: int = 0
    aborts: float = 0.0
    goes_on: float = 0.0


SETTINGS = {
    "chunks of 7": Setting(LLAMA, Limits(tokens=24, requests=6, chunk=7), 400),
    "chunks of 64": Setting(LLAMA, Limits(tokens=96, requests=12, chunk=64), 900, prefix_cache=False),
    "equal beginnings": Setting(MIXED, Limits(tokens=48, requests=8), 300, stems=4),
    "short of pages": Setting(LLAMA, Limits(tokens=32, requests=10), 90, stems=3),
    "conversations": Setting(LLAMA, Limits(tokens=48, requests=8, chunk=24), 1500, goes_on=0.7),
    "aborts": Setting(LLAMA, Limits(tokens=32, requests=8, chunk=16), 120, stems=3, aborts=0.1),
}


def record(setting: Setting) -> tuple[RecordedRun, Machine]:
    """Two hundred requests, which come in bunches; and the machine that a simulation is to have. Conversations go on
    with what was asked and answered before."""
    model = small_model(setting.config)
    layout = kv_layout(model, 1e12, 4, most_tokens=setting.positions)
    engine = build_engine(
        model, layout, setting.limits, executor=Runner(model, layout), prefix_cache=setting.prefix_cache, eos_ids=EOS
    )
    run, draw = RecordedRun(engine), random.Random(1)
    stems = [[draw.randrange(38) for _ in range(draw.randint(9, 30))] for _ in range(setting.stems)]
    waiting, said = REQUESTS, dict[int, list[int]]()
    while waiting or engine.has_work:
        for _ in range(min(waiting, draw.choice((0, 0, 0, 1, 3)))):
            stem = draw.choice(stems) if stems else []
            own = [draw.randrange(38) for _ in range(draw.randint(1, 30))]
            over = [number for number in said if number not in engine.requests]
            if over and draw.random() < setting.goes_on:
                number = over[-1]
                stem = [*said.pop(number), *run.answers[number]]
            prompt = [*stem, *own]
            number = run.add(prompt, replace(GREEDY, max_tokens=draw.randint(1, 30)))
            if len(prompt) < LONGEST:
                said[number] = prompt
            waiting -= 1
        if setting.aborts and engine.requests and draw.random() < setting.aborts:
            run.abort(draw.choice(sorted(engine.requests)))
        run.step()
    planned = case(setting.config)
    return run, Machine(planned, layout, setting.limits, model.context, setting.prefix_cache)


@pytest.mark.parametrize("name", SETTINGS)
def test_every_decision_is_the_same(name: str) -> None:
    torch.set_num_threads(1)
    run, machine = record(SETTINGS[name])
    stats = run.engine.stats
    assert len(run.made) == REQUESTS
    assert len(set(run.made.values())) > 5, "answers end where the model ends them"
    if name == "equal beginnings":
        assert stats.reused_tokens > 1000
    if name == "conversations":
        assert stats.reused_tokens > 3000
    if name == "short of pages":
        assert stats.preemptions >= 20
    if name == "aborts":
        assert len(run.aborted) >= REQUESTS // 20
    steps = 0
    for recorded, simulated in replay(machine, run):
        assert simulated == recorded, f"step {steps}"
        steps += 1
    assert steps == len(run.steps) + 1


def test_what_answers_said_is_part_of_it() -> None:
    """Without the names of answers the next prompt of a conversation does not find their pages, and plans differ."""
    run, machine = record(SETTINGS["conversations"])
    run.answers = {number: [] for number in run.answers}
    assert any(recorded != simulated for recorded, simulated in replay(machine, run))


def test_another_length_is_another_decision() -> None:
    """The comparison can fail: one answer that is a token longer, and plans differ."""
    run, machine = record(replace(SETTINGS["chunks of 64"], limits=Limits(tokens=32, requests=4)))
    run.made[100] += 1
    assert any(recorded != simulated for recorded, simulated in replay(machine, run))
