"""The roofline of this machine: matrix products of five shapes are timed and compared with its measured roofs.

The roofs are those of `ridgeline calibrate`, or else of a probe of two seconds.
"""

import time
from functools import partial
from statistics import median

import torch

from ridgeline.insight.calibrate.calibration_file import Uncalibrated
from ridgeline.insight.calibrate.estimate import PROBE_SECONDS, probed
from ridgeline.insight.calibrate.local_device import this_device
from ridgeline.insight.calibrate.timer import Timer
from ridgeline.learn.lab.experiment import Experiment, ExperimentOutcome
from ridgeline.price.device import Device
from ridgeline.price.device_roofline import roofline
from ridgeline.util.document.elements import DocumentTable, TableRow, columns
from ridgeline.util.document.humanize import say
from ridgeline.util.document.roofline_chart import Point

EDGE, ROWS, FORMAT, NBYTES = 4096, (1, 2, 8, 32, 128), "fp32", 4
"""The shapes of the timed products: side of the square matrix, numbers of rows, dtype, and bytes per number.

The matrix is larger than most caches. The rows stand for a single user, for small and large batches, and for a prompt.
"""
REPEATS, DOUBT, THREADS = 7, 1.1, 1
"""The timed repeats per matrix shape, the factor by which FLOP/s may exceed the roof, and the CPU threads.

A point may exceed its roof a little, because both the time and the roof are measured.
"""


def work(rows: int) -> tuple[int, int]:
    """Return the FLOPs and the bytes of a product of `rows` rows with the matrix."""
    return 2 * rows * EDGE**2, NBYTES * (EDGE**2 + 2 * rows * EDGE)


def seconds(rows: int, matrix: torch.Tensor) -> float:
    """Return the median seconds of a matrix product, over several timings."""
    given, taken = torch.randn(rows, EDGE), list[float]()
    multiply = partial(torch.matmul, given, matrix)
    multiply()
    for _ in range(REPEATS):
        start = time.perf_counter()
        multiply()
        taken.append(time.perf_counter() - start)
    return median(taken)


def point(rows: int, device: Device, took: float) -> Point:
    """Return the point of a product in the roofline: its intensity, its FLOP/s, and the FLOP/s of the roof above it."""
    flops, nbytes = work(rows)
    roof = min(device.peak(FORMAT), flops / nbytes * device.bandwidth_of(nbytes))
    return Point(f"{rows} row{'s' if rows > 1 else ''}", "products", flops / nbytes, flops / took, roof, measured=True)


@torch.inference_mode()
def run() -> ExperimentOutcome:
    """Run the roofline experiment: time matrix products of every shape on one core."""
    torch.set_num_threads(THREADS)
    try:
        device = this_device(THREADS)
    except Uncalibrated:
        device = probed(Timer(torch.device("cpu"), THREADS), PROBE_SECONDS)  # now, under the present load
    matrix = torch.randn(EDGE, EDGE)
    points = [point(rows, device, seconds(rows, matrix)) for rows in ROWS]
    first, *_, last = points
    _, nbytes = work(1)
    ridge = device.peak(FORMAT) / device.bandwidth_of(nbytes)
    rates = [each.flops_per_second for each in points]
    highest = max(points, key=lambda each: each.of_roof)
    rows = [
        TableRow(
            (p.kind, f"{p.intensity:.1f}", say(p.flops_per_second, "FLOP/s"), say(p.roof, "FLOP/s"), f"{p.of_roof:.0%}")
        )
        for p in points
    ]
    return ExperimentOutcome(
        (
            (
                first.intensity < ridge < last.intensity,
                f"{first.intensity:.2f} and {last.intensity:.0f} FLOP/byte; the ridge is at {ridge:.1f}, because the "
                f"matrix lies in {device.memory_level_of(nbytes)} ({say(device.bandwidth_of(nbytes), 'B/s')})",
            ),
            (max(rates) > 4 * rates[0], f"{say(rates[0], 'FLOP/s')} with one row, {say(max(rates), 'FLOP/s')} at most"),
            (highest.of_roof < DOUBT, f"the highest is {highest.kind}, at {highest.of_roof:.0%} of the roof"),
        ),
        (
            DocumentTable(columns("", "FLOP/byte", "rate", "roof", "share of roof"), tuple(rows)),
            roofline(f"Products with a matrix of {EDGE} x {EDGE}", device, [FORMAT], points),
        ),
        {"calibrated": device.calibrated, "ridge": ridge, "rates": rates, "of_roof": [p.of_roof for p in points]},
    )  # fmt: skip


EXPERIMENT = Experiment(
    "roofline-at-home",
    "At which arithmetic intensity is the ridge of this machine?",
    (
        "A product of one row is memory-bound, one of 128 rows is compute-bound: the ridge is between them.",
        "128 rows reach over four times the FLOP/s of one row, because the matrix is read once for all rows.",
        "No product exceeds its roof by more than a tenth.",
    ),
    run,
    timed=(1, 2, 3),
)
