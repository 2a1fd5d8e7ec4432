"""Steps of an engine on a card: decodes of several batches, prompts of several lengths, both at once."""

import time
from collections.abc import Callable, Iterator

from ridgeline.core.ops.work import Work
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.setup import LoadedEngine

BATCHES, CONTEXT = (1, 4, 16, 64, 256), 512
PROMPTS = (128, 512, 2048, 8192)
MIXED = (32, 1024)  # sequences that decode, and the prompt that comes
STEPS, REPEATS = 24, 5
READY = 2  # steps with prompts that are not counted: the first compiles kernels, the second captures a graph

Step = tuple[Work, float]
"""What a step asked, and its seconds."""


class NotMeasured(Exception):
    """A row whose steps failed, or took longer than it may."""


class Steps:
    """Requests of a loaded model, and the steps that they take."""

    def __init__(self, loaded: LoadedEngine, works: list[Work], limit: float) -> None:
        """works: where each step's is put. limit: seconds of a row."""
        self.engine, self._works, self._limit = loaded.engine, works, limit
        self.begin()

    def begin(self) -> None:
        """A row begins, without requests of the one before."""
        for request in list(self.engine.requests.values()):
            self.engine.abort(request.group)
        self._end = time.perf_counter() + self._limit

    def add(self, length: int, tokens: int) -> None:
        """A prompt of so many tokens, and how many it is to be answered with."""
        params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=tokens)
        self.engine.add(
            GenerationRequest(
                [(position * 7 + 1) % self.engine.traits.vocabulary for position in range(length)], params
            )
        )

    def run(self) -> Iterator[Step]:
        """Steps until nothing is left to do. Raises NotMeasured."""
        engine, before = self.engine, self.engine.stats.preemptions
        while engine.has_work:
            start = time.perf_counter()
            events = engine.step()
            seconds = time.perf_counter() - start
            failed = [event.error for event in events if event.error is not None]
            if failed:
                raise NotMeasured(f"a request failed: {failed[0]}")
            if engine.stats.preemptions > before:  # memory is never short here: the engine has said what failed
                raise NotMeasured("a step failed")
            yield self._works[-1], seconds
            if time.perf_counter() > self._end:
                stats = engine.stats
                raise NotMeasured(
                    f"{self._limit:g} s were not enough: {stats.running} requests running, {stats.waiting} waiting, "
                    f"the last step of {self._works[-1].tokens} tokens took {seconds:.3f} s"
                )

    def decode(self, batch: int) -> list[Step]:
        """Of so many sequences, each CONTEXT long in the middle of them. The first capture graphs."""
        for _ in range(batch):
            self.add(CONTEXT - STEPS // 2, STEPS)
        return [each for each in self.run() if each[0].is_decode and each[0].sequences == batch][3:]

    def prefill(self, length: int) -> list[Step]:
        """Of a prompt alone."""
        found: list[Step] = []
        for _ in range(REPEATS + READY):
            self.add(length, 1)
            found += [each for each in self.run() if each[0].tokens == length]
        return found[READY:]

    def mixed(self, running: int, prompt: int) -> list[Step]:
        """Of sequences that decode while a prompt comes."""
        for _ in range(running):
            self.add(CONTEXT - REPEATS, 3 * (REPEATS + READY))
        found: list[Step] = []
        for each in self.run():
            if each[0].tokens == running + prompt:
                found.append(each)
            if each[0].sequences >= running and len(found) < REPEATS + READY:
                self.add(prompt, 1)
        return found[READY:]


def rows_of(steps: Steps) -> Iterator[tuple[str, Callable[[], list[Step]]]]:
    """The rows of a model: decode alone, prefill alone, and both in one step; each with what takes its steps."""
    for batch in BATCHES:
        yield f"decode {batch} x 1 of {CONTEXT}", lambda batch=batch: steps.decode(batch)  # type: ignore[misc]
    for length in PROMPTS:
        yield f"prefill {length}", lambda length=length: steps.prefill(length)  # type: ignore[misc]
    running, prompt = MIXED
    yield f"mixed: decode {running} of {CONTEXT}, prefill {prompt}", lambda: steps.mixed(running, prompt)
