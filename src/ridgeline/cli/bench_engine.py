"""`ridgeline bench engine` measures the engine's speed relative to the peak rates of this machine.

The engine is imported inside the command, because `bench serve` is in the same group and does not need it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli import options
from ridgeline.cli.console import changing_line, print_json, say
from ridgeline.cli.engine_flags import SpeculationFlags
from ridgeline.cli.flags import with_flags
from ridgeline.util.document.terminal_renderer import show

_FILE = (
    "A JSON file with named workloads: sequences (the number of equal ones) with prompt and output "
    "(tokens of each), or requests with a range [from, to] for both and a seed; also temperature and "
    "top_p."
)
_NAMES = "The workloads of the file to run, in this order; all by default."
_ROUNDS = "How often to run each workload, in turn; the results are then medians, with minimum and maximum."
_PROBE = (
    "Compare with bandwidth and peak measured before and after each run, even on a calibrated "
    "machine: other processes may slow it down now, or slowed it down then."
)


@dataclass(frozen=True, slots=True)
class BenchFlags(SpeculationFlags):
    """The engine options with larger steps and smaller batches by default than elsewhere."""

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
    """Benchmark the engine with batches of requests, and compare it with what this machine can do.

    Output: all generated tokens, over the time until the last one. Prefill: prompt tokens, over the time until every
    request has its first token. Decode: the tokens after that, over the time after that. Workloads with random lengths
    report only the output. Ceiling: the speed if each step had taken the minimum, the longer of its FLOPs at peak and
    its bytes of weights and KV cache at full bandwidth. Share: the measured part of the ceiling. The limits come from
    `ridgeline calibrate`, or are probed before and after each run.

    All requests are submitted at once, with prompts of random ids that are the same for the same file and seed. Nothing
    is cached between runs, and responses do not end early. The first workload of the file with sequences runs once as a
    warm-up, and so does a step of the maximum size; neither is counted. --json prints one line per workload.
    """
    from ridgeline.cli.missing_kernels import warn_missing_kernels
    from ridgeline.insight.bench.engine.bench_row import BenchRow, measure
    from ridgeline.insight.bench.engine.engine_bench_report import document, row_json
    from ridgeline.insight.bench.engine.engine_run import check_capacity, warm_up
    from ridgeline.insight.bench.engine.measured_roofs import RoofMeter
    from ridgeline.insight.bench.engine.workload import choose, read_workloads

    if rounds < 1:
        raise ValueError(f"--rounds is {rounds}; it must be at least 1")
    known = read_workloads(workloads)
    chosen = choose(known, names or ())
    _check_continues(model)
    llm = settings.load(model, prefix_cache=False, seed=1)
    check_capacity(llm.engine, chosen)
    warn_missing_kernels()
    roofs = RoofMeter(llm.threads, probe=probe, place=llm.loaded.device)
    rows: list[BenchRow] = []
    with changing_line(otherwise=say) as on_progress:
        on_progress("warming up")
        warm_up(llm.engine, known.values(), otherwise=chosen[0])
        for row in measure(llm.engine, llm.loaded.price, chosen, rounds, roofs, on_progress):
            rows.append(row)
            if as_json:
                print_json(row_json(row, roofs))
    if not as_json:
        show(document(model, rows, roofs))
    if guessed := llm.engine.stats.guessed():
        say(guessed)


def _check_continues(model: str) -> None:
    """Raise ValueError for a model with an encoder."""
    from ridgeline.core.checkpoint import open_source
    from ridgeline.core.models import SPEECH, family_of

    family = family_of(open_source(model).config)
    if family.is_encoder_decoder or family in SPEECH:
        raise ValueError(f"{model} has an encoder, but workloads describe no encoder input; give a decoder-only model")
