"""A decode step in parts: the kernels that it calls, and the Python overhead that a recording of them removes.

On a GPU such a recording is a CUDA graph.
"""

import time
from collections.abc import Callable
from statistics import median

import torch

from ridgeline.backends.model_loader import load_model
from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.engine import SamplingParams
from ridgeline.engine.engine_builder import build_minimal_engine
from ridgeline.engine.events import StepRecord
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.runner import Runner
from ridgeline.learn.lab.cost_calculator import CostCalculator
from ridgeline.learn.lab.experiment import Experiment, ExperimentOutcome
from ridgeline.util.document.charts import Bar, Bars
from ridgeline.util.document.elements import DocumentTable, TableRow, columns
from ridgeline.util.document.humanize import say_seconds

PROMPT, ANSWER, REPEATS, GPU = 32, 64, 60, "h100-sxm"
_COUNTED = "at best: at the GPU's roofs. kernels: PyTorch's, several for some ops; ridgeline trace counts the ops."


def usual(run: Callable[[], object]) -> float:
    """Return the median seconds that a function takes, over several calls."""
    taken = list[float]()
    for _ in range(REPEATS):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return median(taken)


def kernels(ledger: CostCalculator, model: str) -> tuple[int, float]:
    """Return the number of kernels that a decode step launches on a GPU, and the minimum seconds of the step."""
    price, work = (
        ledger.price(model),
        Work.of([StepSegment(1, PROMPT + ANSWER)], ledger.model(model).attention_patterns),
    )
    launched = sum(priced.count * sum(kernel.calls for kernel in priced.launches(work)) for priced in price.ops)
    return round(launched), price.price_step(ledger.gpu(GPU), work).bound


def decoding() -> tuple[Runner, StepRecord, float]:
    """Run one request in an engine, and stop before its last decode step.

    Returns:
        The engine's runner, the record of the last step that ran, and the median seconds of its decode steps. The first
        decode step is left out.
    """
    records = list[StepRecord]()
    engine = build_minimal_engine(load_model("tales"), PROMPT + ANSWER, records.append)
    engine.add(
        GenerationRequest(list(range(PROMPT)), SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=ANSWER))
    )
    while len(records) < ANSWER - 1:
        engine.step()
    runner = engine.executor
    assert isinstance(runner, Runner)
    return runner, records[-1], median(record.seconds for record in records[2:])


def run() -> ExperimentOutcome:
    """Run the experiment: a step of the built-in model on this machine, and the launches of larger ones on a GPU.

    Raises:
        ValueError: If this package's own kernels are missing.
    """
    runner, last, whole = decoding()
    plan = last.plan.rerun()
    recording = runner.graph(plan)
    if recording is None:
        raise ValueError("this experiment needs Ridgeline's own CPU kernels: install g++, then reinstall ridgeline")
    kernel_calls = usual(lambda: runner.forward(plan))
    again = usual(recording.replay)
    prepared = usual(lambda: runner.step_logits(plan)) - again
    same = torch.equal(runner.step_logits(plan).clone(), runner.forward(plan))
    ledger = CostCalculator()
    by_model = {name: kernels(ledger, name) for name in ("tales", "llama-3.2-1b", "llama-3-8b", "llama-3-70b")}
    each = {name: bound / launched for name, (launched, bound) in by_model.items()}
    parts = {
        "kernels, called again": again,
        "the batch made ready": prepared,
        "scheduler and sampler": max(0.0, whole - again - prepared),
        "Python asking for each kernel": kernel_calls - again,
    }
    rows = [
        TableRow((name, f"{count:,}", say_seconds(least), say_seconds(each[name])))
        for name, (count, least) in by_model.items()
    ]
    heads = columns("on an H100", "kernels per step", "at best, per step", "at best, per kernel")
    bars = [Bar(name, 1e6 * took, dim="Python" in name) for name, took in parts.items()]
    launch = ledger.gpu(GPU).efficiency_of("linear").launch
    return ExperimentOutcome(
        (
            (same, f"the {len(recording.calls)} recorded calls of CPU kernels give the same logits to the last bit"),
            (
                kernel_calls > 2 * again,
                f"{say_seconds(kernel_calls)} when Python launches the kernels, "
                f"{say_seconds(again)} when the recording does",
            ),
            (
                each["tales"] < launch < each["llama-3-8b"],
                f"at best, a kernel works for {say_seconds(each['tales'])} for tales and "
                f"{say_seconds(each['llama-3-8b'])} for the 8B; a launch takes {say_seconds(launch)}",
            ),
        ),
        (
            DocumentTable(heads, tuple(rows), (_COUNTED,)),
            Bars("A decode step of tales on this machine", "microseconds; grey: saved by the recording", tuple(bars)),
        ),
        {"calls": len(recording.calls), "seconds": parts, "cards": by_model},
    )  # fmt: skip


EXPERIMENT = Experiment(
    "launches",
    "How long does it take to launch a kernel from Python?",
    (
        "Every decode step calls the same kernels. Calling the recorded kernels without Python gives the same logits.",
        "For a small model, launching the kernels from Python takes longer than running them.",
        "On a GPU, a kernel of `tales` ends long before the next one can be launched; a kernel of an 8B does not.",
    ),
    run,
    timed=(2,),
)
