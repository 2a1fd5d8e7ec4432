"""`ridgeline bench engine`: how fast the engine is, beside what the roofs of this machine allow.

What runs a model is imported only to run one: `bench serve` stands in the same group and does without.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli import options
from ridgeline.cli.console import err, say
from ridgeline.cli.engine_flags import SpeculationFlags
from ridgeline.cli.flags import with_flags
from ridgeline.util.document.printable import printable
from ridgeline.util.document.terminal_renderer import show

_FILE = (
    "A JSON file of workloads by name: sequences (how many, all alike) with prompt and output (tokens of each), or "
    "requests with two numbers for both, from and to, and a seed; also temperature and top_p."
)
_NAMES = "Which workloads of the file, in this order; by default all."
_ROUNDS = "How often to run each, in turn; figures are medians then, with the least and the most."
_PROBE = (
    "Hold runs against roofs probed before and after each, even on a calibrated machine: others may slow it down now, "
    "or have done so then."
)


@dataclass(frozen=True, slots=True)
class BenchFlags(SpeculationFlags):
    """As elsewhere, but steps and batches of other sizes."""

    max_batch_tokens: options.MaxBatchTokens = "4k"
    max_requests: options.MaxRequests = 64


@with_flags
def engine(
    model: options.ModelName,
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help=_NAMES, show_default=False)] = None,
    *,
    workloads: Annotated[Path, typer.Option(help=_FILE, metavar="FILE")],
    rounds: Annotated[int, typer.Option(help=_ROUNDS)] = 1,
    probe: Annotated[bool, typer.Option("--probe", help=_PROBE)] = False,
    settings: BenchFlags,
    as_json: options.Json = False,
) -> None:
    """Give the engine batches of requests, and say how near it came to what this machine can do.

    Output: all tokens that came, over the time until the last one. Prefill: tokens of the prompts, over the time until
    every request has its first token. Decode: the tokens after that, over the time after it. Workloads of drawn lengths
    have output alone. Ceiling: if each step that ran had taken its floor, the longer of its FLOPs at the peak and its
    bytes of weights and KV at the bandwidth. Share: of the ceiling. Roofs are those of `ridgeline calibrate`, else
    probed before and after each run.

    Every request is handed over at once, its prompt random ids, the same ones for the same file and seed. Nothing is
    kept of a prompt from one run to the next, and answers do not end early. The first workload of the file that has
    sequences runs once before, and a step as large as one may be; neither is counted. --json gives a line for each
    workload.
    """
    from ridgeline.cli.missing_kernels import warn_missing_kernels
    from ridgeline.insight.bench.engine.bench_row import BenchRow, measure
    from ridgeline.insight.bench.engine.engine_bench_report import document, row_json
    from ridgeline.insight.bench.engine.engine_run import check_room, warm_up
    from ridgeline.insight.bench.engine.measured_roofs import RoofMeter
    from ridgeline.insight.bench.engine.workload import choose, read_workloads

    if rounds < 1:
        raise ValueError(f"--rounds is {rounds}; it must be at least 1")
    known = read_workloads(workloads)
    chosen = choose(known, names or ())
    _check_continues(model)
    llm = settings.load(model, prefix_cache=False, seed=1)
    check_room(llm.engine, chosen)
    warn_missing_kernels()
    roofs = RoofMeter(llm.threads, probe=probe, place=llm.loaded.device)
    rows: list[BenchRow] = []
    with _progress() as told:
        told("warming up")
        warm_up(llm.engine, known.values(), otherwise=chosen[0])
        for row in measure(llm.engine, llm.loaded.price, chosen, rounds, roofs, told):
            rows.append(row)
            if as_json:
                print(json.dumps(row_json(row, roofs)), flush=True)
    if not as_json:
        show(document(model, rows, roofs))
    if guessed := llm.engine.stats.guessed():
        say(guessed)


def _check_continues(model: str) -> None:
    """Raises ValueError for a model with an encoder."""
    from ridgeline.core.checkpoint import open_source
    from ridgeline.core.models import SPEECH, family_of

    family = family_of(open_source(model).config)
    if family.encodes or family in SPEECH:
        raise ValueError(f"{model} has an encoder, whose input no workload states; give a model that continues text")


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """How far it is: a line on stderr that changes, or one for each run where stderr is no terminal."""
    if not err.is_terminal:
        yield say
        return
    with err.status("") as status:
        yield lambda text: status.update(printable(text))
