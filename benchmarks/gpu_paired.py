"""Compare the speed of two versions of the package on a GPU: `gpu.py` of each, in turn.

    python benchmarks/gpu_paired.py BEFORE AFTER [--model qwen3-0.6b] [--seconds 540]

BEFORE and AFTER are checkouts. Each runs its own `gpu.py --alone`, in the order before, after, after, before, and no
more than --seconds in all. Printed are the median seconds of each step and the speed after in units of the speed
before; what is slower than 0.97 is marked, and the exit code is 1 then.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

SLOWER = 0.97
"""The speed after, in units of the speed before, below which a step is marked."""


def medians(checkout: Path, model: str, limit: float) -> dict[str, float]:
    """Return the median seconds of each step of a model, as a checkout's gpu.py measures them. Raises ValueError if it
    measures nothing within so many seconds."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out.json")
        command = [sys.executable, "gpu.py", "--alone", "--models", model, "--seconds", "20", "--out", str(out)]
        environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
        try:
            subprocess.run(command, cwd=checkout / "benchmarks", env=environment, timeout=limit, check=True)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            raise ValueError(f"{checkout}: gpu.py ended without figures: {error}") from None
        if not out.exists():
            raise ValueError(f"{checkout}: gpu.py measured nothing; run it where torch sees a CUDA device")
        rows = json.loads(out.read_text(encoding="utf-8"))["rows"]
    return {row["step"]: row["seconds"] for row in rows}


def main() -> int:
    """Measure both in turn, and print how their steps compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--model", default="qwen3-0.6b")
    parser.add_argument("--seconds", type=float, default=540.0)
    asked = parser.parse_args()
    end = time.monotonic() + asked.seconds
    found: dict[str, dict[str, list[float]]] = {"before": defaultdict(list), "after": defaultdict(list)}
    for name in ("before", "after", "after", "before"):
        try:
            for step, seconds in medians(getattr(asked, name), asked.model, end - time.monotonic()).items():
                found[name][step].append(seconds)
        except ValueError as error:
            print(error)
            break
    slower = False
    for step in found["before"].keys() & found["after"].keys():
        before, after = (statistics.median(found[name][step]) for name in ("before", "after"))
        slower |= before / after < SLOWER
        mark = "  slower" if before / after < SLOWER else ""
        print(f"{step:24} {before:.6f} s {after:.6f} s {before / after:.3f}{mark}")
    return int(slower or not found["after"])


if __name__ == "__main__":
    sys.exit(main())
