"""What structured outputs cost a step: masks of 16 rows of a 152k vocabulary beside a step of a 0.6 B model.

    python benchmarks/guidance.py TOKENIZER_FOLDER [--model qwen3-0.6b] [--rows 16] [--tokens 48]

The goal is under 5 % of a step. Weights are random, so that what is sampled under the grammar is any token it allows:
the wide masks of free strings are among them, which cost most.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ridgeline.core.text import load_tokenizer
from ridgeline.engine import EngineSettings, SamplingParams, StructuredOutputs
from ridgeline.engine.events import StepRecord
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.setup import load_engine
from ridgeline.engine.structured_output import OutputConstraint, StructuredOutputManager

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "notes": {"type": "array", "items": {"type": "string"}},
        "kind": {"enum": ["friend", "colleague", "stranger"]},
    },
    "required": ["name", "age", "notes", "kind"],
    "additionalProperties": False,
}


class Stopwatch:
    """Seconds that some functions take, added up."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args)
            finally:
                self.seconds += time.perf_counter() - start

        return timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--model", default="qwen3-0.6b")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=48)
    options = parser.parse_args()
    steps: list[StepRecord] = []
    loaded = load_engine(options.model, EngineSettings(kv_bytes=512e6), dummy_weights=True, on_step=steps.append)
    engine = loaded.engine
    engine.structured_output_manager = guides = StructuredOutputManager(
        load_tokenizer(options.tokenizer), engine.traits.vocabulary
    )
    params = SamplingParams(
        structured_outputs=StructuredOutputs(json=PERSON), max_tokens=options.tokens, ignore_eos=True, seed=0
    )
    start = time.perf_counter()
    guides.constraint_for(StructuredOutputs(regex="a"), [1], ())
    print(f"tables of {engine.traits.vocabulary:,} tokens: {time.perf_counter() - start:.2f} s, once a model")
    masks, moves = Stopwatch(), Stopwatch()
    OutputConstraint.allowed = masks.around(OutputConstraint.allowed)  # type: ignore[method-assign]
    OutputConstraint.take = moves.around(OutputConstraint.take)  # type: ignore[method-assign]
    for row in range(options.rows):
        engine.add(GenerationRequest([row + 1] * 16, params))
    guided: list[tuple[float, float]] = []  # seconds of a step, of them for grammars
    while engine.has_work:
        masks.seconds = moves.seconds = 0.0
        start = time.perf_counter()
        engine.step()
        if steps[-1].decodes_only and steps[-1].work.sequences == options.rows:
            guided.append((time.perf_counter() - start, masks.seconds + moves.seconds))
    own = [grammar for _, grammar in guided]
    step = statistics.median(seconds - grammar for seconds, grammar in guided)
    print(f"{len(guided)} steps of {options.rows} rows, every row guided by a JSON schema")
    print(f"a step without its grammars: {1e3 * step:.1f} ms (median)")
    for name, value in (("median", statistics.median(own)), ("mean", statistics.mean(own)), ("most", max(own))):
        print(f"masks and moves, {name}: {1e3 * value:.2f} ms, {100 * value / step:.2f} % of that step")
    told = engine.stats
    print(f"{told.grammars} grammars compiled in {1e3 * told.grammar_seconds:.1f} ms")


if __name__ == "__main__":
    main()
