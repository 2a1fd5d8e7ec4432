"""The program of the second process of a CFG-parallel pair, which cfg_parallel_process.py starts.

It runs as `python -m ridgeline.media.diffusion.cfg_parallel_child`.
"""

import pickle
import sys

from ridgeline.media.diffusion.cfg_parallel import CFGParallelPair
from ridgeline.media.diffusion.cfg_parallel_process import READY, CFGParallelStart, join
from ridgeline.media.diffusion.pipeline_loader import load_pipeline


def main() -> None:
    """Load the pipeline of the CFGParallelStart on stdin, report READY, and run the other guidance pass of its plan."""
    start = pickle.load(sys.stdin.buffer)
    assert isinstance(start, CFGParallelStart)
    try:
        pipeline = load_pipeline(start.model, start.dtype, threads=start.threads)
        texts = pipeline.encode(start.plan)
        print(READY, flush=True)
        join(start.rendezvous, 1)
        for _ in pipeline.denoise(start.plan, texts, CFGParallelPair()):
            pass
    except Exception as error:  # the first process reports any error
        print(" ".join(str(error).split()) or type(error).__name__, flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
