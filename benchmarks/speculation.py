"""Speculation at a stated acceptance: tokens a second beside those without, and beside what the price says.

A drafter replays what the model says by itself, each guess right with the same probability, so that gain is a matter of
the engine alone. Every answer is compared with the one without guesses. Where the machine is calibrated for this number
of threads (`ridgeline calibrate --threads N`) its figures are the prediction's, else a probe's.

    python benchmarks/speculation.py MODEL [--guesses 4] [--sequences 1] [--prompt 128] [--output 128] [--threads 2]

--eager asks for every op of every step, as is done where steps with guesses are not recorded.
"""

import argparse
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ridgeline.engine.engine import Engine
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.events import StepRecord
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.setup import LoadedEngine, load_engine
from ridgeline.engine.speculation.acceptance import expected_tokens
from ridgeline.engine.speculation.drafter import DraftRequest
from ridgeline.engine.speculation.speculator import Speculator
from ridgeline.insight.calibrate.local_device import this_device
from ridgeline.price.device import Device

ACCEPTANCES = (0.3, 0.6, 0.9)
Answers = dict[tuple[int, ...], list[int]]


class Replay:
    """A drafter that knows the answers."""

    def __init__(self, answers: Answers, acceptance: float, vocabulary: int) -> None:
        self._answers, self._acceptance, self._vocabulary = answers, acceptance, vocabulary
        self._draw = random.Random(1)

    def draft(self, asks: Sequence[DraftRequest]) -> list[list[int]]:
        """As Drafter.draft."""
        return [[*map(self._guess, self._next(ask))] for ask in asks]

    def forget(self, request: int) -> None:
        """Nothing is kept of it."""

    def _next(self, ask: DraftRequest) -> list[int]:
        begun = ask.request.output_length
        return self._answers[tuple(ask.request.tokens.prompt)][begun : begun + ask.most]

    def _guess(self, token: int) -> int:
        return token if self._draw.random() < self._acceptance else (token + 1) % self._vocabulary


@dataclass(slots=True)
class Decoded:
    """What decode steps took. predicted: seconds by the price. tokens: that requests had of them."""

    steps: int = 0
    tokens: int = 0
    measured: float = 0.0
    predicted: float = 0.0


def run(engine: Engine, prompts: Sequence[list[int]], output: int, told: Callable[[StepRecord], None]) -> Answers:
    """Answer all prompts at once; every answer by its prompt."""
    engine.on_step = told
    greedy = SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True)
    asked = {engine.add(GenerationRequest(prompt, greedy)): tuple(prompt) for prompt in prompts}
    answers: Answers = {prompt: [] for prompt in asked.values()}
    while engine.has_work:
        for event in engine.step():
            assert event.error is None, event.error
            if event.token is not None:
                answers[asked[event.request]].append(event.token.token)
    engine.on_step = None
    return answers


def measured(
    loaded: LoadedEngine, device: Device, prompts: Sequence[list[int]], output: int, speculator: Speculator | None
) -> tuple[Answers, Decoded]:
    """The answers, and what their decode steps took from the end of one to the end of the next: the scheduler, the
    drafter and the sampler included."""
    found, works, last = Decoded(), [], 0.0

    def told(record: StepRecord) -> None:
        nonlocal last
        now = time.perf_counter()
        if record.decodes_only and last:
            found.steps += 1
            found.tokens += record.sampled
            found.measured += now - last
            works.append(record.work)
        last = now

    loaded.engine.speculator = speculator
    answers = run(loaded.engine, prompts, output, told)
    found.predicted = sum(loaded.price.price_step(device, work).expected for work in works)
    return answers, found


def main() -> None:
    """Print a line for each acceptance."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    for name, usual in (("guesses", 4), ("sequences", 1), ("prompt", 128), ("output", 128), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--eager", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = this_device(options.threads, estimate=True)
    positions = options.sequences * (options.prompt + options.output + 32)
    loaded = load_engine(options.model, EngineSettings(prefix_cache=False, eager=options.eager))
    assert loaded.layout.tokens >= positions, "KV memory holds all requests"
    draw = random.Random(2)
    vocabulary = min(loaded.model.vocabulary, 2000)
    prompts = [[draw.randrange(5, vocabulary) for _ in range(options.prompt)] for _ in range(options.sequences)]
    measured(loaded, device, prompts, 8, None)
    answers, plain = measured(loaded, device, prompts, options.output, None)
    how = "calibrated" if device.calibrated else "probed"
    print(
        f"{options.model}: {options.sequences} x {options.prompt} in, {options.output} out; {options.guesses} guesses"
    )
    print(f"{device.title} ({how}), {options.threads} threads; decode alone, ms a step and tokens a second")
    print("acceptance  observed  tokens/step (formula)  ms/step (predicted)    tok/s   gain (predicted)  same")
    print(_line("none", "", plain, plain, 1.0, True, options.sequences))
    for acceptance in ACCEPTANCES:
        drafter = Replay(answers, acceptance, loaded.model.vocabulary)
        speculator = Speculator(drafter, options.guesses, loaded.model.vocabulary)
        again, found = measured(loaded, device, prompts, options.output, speculator)
        seen = 1 - _stopped(speculator) / max(1, _stopped(speculator) + speculator.accepted_tokens)
        formula = expected_tokens(acceptance, options.guesses)
        print(_line(f"{acceptance:.1f}", f"{seen:.2f}", found, plain, formula, again == answers, options.sequences))


def _stopped(speculator: Speculator) -> int:
    """Guesses that were looked at and wrong: one a draft, but for those that were right to the last."""
    return speculator.drafts - speculator.accepted_at[-1]


def _line(name: str, seen: str, found: Decoded, plain: Decoded, formula: float, same: bool, sequences: int) -> str:
    each, ms = found.tokens / found.steps / sequences, 1e3 * found.measured / found.steps
    gain = found.tokens / found.measured * plain.measured / plain.tokens
    predicted = found.tokens / found.predicted * plain.predicted / plain.tokens
    said = 1e3 * found.predicted / found.steps
    return (
        f"{name:>10}  {seen:>8}  {each:11.2f} ({formula:.2f})      {ms:7.2f} ({said:7.2f}) "
        f"{found.tokens / found.measured:10.1f}   {gain:4.2f} ({predicted:.2f})        {'yes' if same else 'NO'}"
    )


if __name__ == "__main__":
    main()
