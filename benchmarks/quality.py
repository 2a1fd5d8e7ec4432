"""What formats cost and gain: perplexity of held-out stories beside bits, bytes and tokens a second.

    python benchmarks/quality.py [--stories FOLDER] [--speed] [--large qwen3-0.6b] [--write]

$RIDGELINE_DATA/text/tinystories_sample.txt has five stories that `tales` was never trained on (zoo/README.md); FOLDER
is stories260K, by default where $RIDGELINE_DATA has it. --speed takes decode steps of each cell, of one sequence and of
16, as local_accuracy.py does, and wants an idle, calibrated machine. --write puts the tables into quality.md beside it.
"""

import argparse
import math
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from local_accuracy import Bench
from ridgeline.core.ops.matrix import Matrix
from ridgeline.engine import LLM, EngineSettings, SamplingParams

REPORT = Path(__file__).with_name("quality.md")
ENDS = "<|endoftext|>"
BEGIN = "<!-- tables: python benchmarks/quality.py --write -->\n"
GOALS = {"int8": 0.005, "int4-g32": 0.05}
"""Of `tales`: the most that perplexity may rise."""
BATCHES, PROMPT = (1, 16), 8
ROUNDS, FAR = 7, 0.1


@dataclass(frozen=True)
class Cell:
    """A way to store weights, and keys and values; None for the model's dtype. Activations have that but in w8a8, and
    where int8 and int4 are products of bytes, for which rows are rounded to int8 (docs/formats.md)."""

    name: str
    weights: str | None = None
    kv: str | None = None


CELLS = (
    Cell("plain"),
    Cell("int8", "int8"),
    Cell("w8a8", "w8a8"),
    Cell("fp8", "fp8"),
    Cell("int4", "int4"),
    Cell("int4-g32", "int4-g32"),
    Cell("w8a8, KV int8", "w8a8", "int8"),
    Cell("int4-g32, KV fp8", "int4-g32", "fp8"),
)
ALSO = (Cell("int4-g64", "int4-g64"), Cell("int8+head", "int8+head"), Cell("int4-g32+head", "int4-g32+head"))
"""Of which perplexity alone is taken."""


@dataclass(frozen=True)
class Speed:
    """Decode steps of so many sequences, tokens a second: predicted, the median of what was measured, its quartiles."""

    predicted: float
    measured: float
    low: float
    high: float

    def __str__(self) -> str:
        off = self.predicted / self.measured - 1
        said = f"{off:+.0%}" if abs(off) <= FAR else f"**{off:+.0%}**"
        return f"{self.predicted:.1f} / {self.measured:.1f} ({self.low:.1f} to {self.high:.1f}), {said}"


@dataclass(frozen=True)
class Row:
    """A cell of a model. bits: of a number of the matrices in the blocks, with scales and zeros. nbytes: of all
    weights. kv_bytes: of a position. nats: of each token, None of random weights. speeds: one of BATCHES each; none
    where they were not taken."""

    cell: str
    dtype: str
    bits: float
    nbytes: int
    kv_bytes: float
    nats: tuple[float, ...] | None
    speeds: tuple[Speed, ...]


def loaded(model: str, cell: Cell, *, dummy: bool) -> LLM:
    settings = EngineSettings(kv_bytes=256e6, prefix_cache=False, weights=cell.weights, kv=cell.kv, seed=0)
    return LLM(model, settings, dummy_weights=dummy)


def nats_of(llm: LLM, stories: Sequence[str]) -> tuple[float, ...]:
    """What each token but the first of each story costs, the story cut to the context."""
    params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0)
    prompts = [llm.encode(story)[: llm.engine.traits.context - 1] for story in stories]
    told = [completion.prompt_logprobs for completion in llm.generate(prompts, params)]
    return tuple(-token.logprob for story in told for token in story or () if token is not None)


def speed_of(name: str, llm: LLM, batch: int) -> Speed:
    """Through an engine of its own, at the pace of the calibration: of twice as many runs those nearest to it."""
    bench, prompts, model = Bench(torch.get_num_threads(), ROUNDS), (PROMPT,) * batch, llm.loaded.model
    runs = [run for _ in range(ROUNDS) for run in bench.pair(model, prompts)]
    _, row = bench.rows(name, model, prompts, runs)
    predicted, measured, slow, fast = (batch / s for s in (row.predicted, row.measured, row.high, row.low))
    return Speed(predicted, measured, slow, fast)


def bits_of(llm: LLM) -> float:
    """Of a number of the matrices that a format is of: all in the blocks."""
    exempt = {id(m) for _, op in llm.loaded.model.ops() if getattr(op, "exempt", False) for m in op.children()}
    of = [m for m in llm.loaded.model.modules() if isinstance(m, Matrix) and id(m) not in exempt]
    shares = [matrix.storage_shares()[0] for matrix in of]
    return 8 * sum(share.nbytes for share in shares) / sum(share.parameters for share in shares)


def row_of(model: str, cell: Cell, stories: Sequence[str], *, dummy: bool, speed: bool) -> Row:
    llm = loaded(model, cell, dummy=dummy)
    layout = llm.loaded.layout
    return Row(
        cell.name,
        str(llm.loaded.model.storage.dtype).removeprefix("torch."),
        bits_of(llm),
        llm.loaded.weight_bytes,
        layout.page_bytes / layout.page_size,
        None if dummy else nats_of(llm, stories),
        tuple(speed_of(cell.name, llm, batch) for batch in BATCHES) if speed else (),
    )


# -- the page ----------------------------------------------------------------------------------------------------------


def against(row: Row, plain: Row) -> tuple[float, float]:
    """By how much perplexity differs from that of the plain model, and the standard error of that: token by token."""
    assert row.nats is not None
    assert plain.nats is not None
    more = [a - b for a, b in zip(row.nats, plain.nats, strict=True)]
    ratio = math.exp(statistics.mean(more))
    return ratio - 1, ratio * statistics.stdev(more) / math.sqrt(len(more))


def table(title: str, rows: Sequence[Row]) -> str:
    """Of one model; with speeds where they were taken."""
    plain = rows[0]
    timed = tuple(f"decode tok/s of {n}, predicted / measured (quartiles)" for n in BATCHES) if plain.speeds else ()
    names = ("cell", "bits a weight", "weights MB", "KV bytes a position", "perplexity", "against plain", *timed)
    lines = [f"### {title}", "", f"The model is in {plain.dtype}.", "", _line(names), _line(["---"] * len(names))]
    for row in rows:
        cells = [row.cell, f"{row.bits:.2f}", f"{row.nbytes / 1e6:.2f}", f"{row.kv_bytes:.0f}", *_quality(row, plain)]
        if timed:
            cells += list(map(str, row.speeds)) or [""] * len(timed)
        lines.append(_line(cells))
    return "\n".join(lines) + "\n"


def _quality(row: Row, plain: Row) -> list[str]:
    """Perplexity, and how it differs."""
    if row.nats is None:
        return ["", ""]
    rise, error = against(row, plain)
    change = "" if row is plain else f"{rise:+.2%} +- {error:.2%}"
    return [f"{math.exp(statistics.mean(row.nats)):.4f}", change]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def missed(rows: Sequence[Row]) -> list[str]:
    """The goals that `tales` misses."""
    rises = {row.cell: against(row, rows[0])[0] for row in rows}
    return [f"{cell}: {rises[cell]:+.2%}, the goal is {goal:.1%}" for cell, goal in GOALS.items() if rises[cell] > goal]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    data = Path(os.environ.get("RIDGELINE_DATA", "data"))
    parser.add_argument("--stories", type=Path, default=data / "models" / "stories260K")
    parser.add_argument("--speed", action="store_true", help="decode steps too, on an idle machine")
    parser.add_argument("--large", help="a config whose speed is taken with random weights")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    text = (data / "text" / "tinystories_sample.txt").read_text(encoding="utf-8")
    stories = [story.strip() for story in text.split(ENDS) if story.strip()]
    subjects = [("tales", "tales", False)]
    if options.stories.is_dir():
        subjects.append(("stories260K", str(options.stories), False))
    else:
        print(f"no stories260K in {options.stories}: left out", file=sys.stderr)
    if options.large:
        subjects.append((f"{options.large}, random weights", options.large, True))
    tables: list[str] = []
    misses: list[str] = []
    for title, model, dummy in subjects:
        rows: list[Row] = []
        for cell in CELLS:
            rows.append(row_of(model, cell, stories, dummy=dummy, speed=options.speed))
            print(f"{title}: {cell.name}", file=sys.stderr)
        rows += [row_of(model, cell, stories, dummy=False, speed=False) for cell in ALSO if not dummy]
        tables.append(table(title, rows))
        misses += missed(rows) if model == "tales" else []
    page = "\n".join(tables)
    print(page)
    if options.write:
        before = REPORT.read_text(encoding="utf-8").partition(BEGIN)[0]
        REPORT.write_text(before + BEGIN + "\n" + page, encoding="utf-8")
    if misses:
        sys.exit("; ".join(misses))


if __name__ == "__main__":
    main()
