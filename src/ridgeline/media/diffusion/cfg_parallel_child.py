"""What runs in the second process of a pair: `python -m ridgeline.media.diffusion.cfg_parallel_child`, started by
cfg_parallel_process.py.
"""

import pickle
import sys

from ridgeline.media.diffusion.cfg_parallel import CFGParallelPair
from ridgeline.media.diffusion.cfg_parallel_process import READY, CFGParallelStart, join
from ridgeline.media.diffusion.pipeline_loader import load_pipeline


def main() -> None:
    """Load the pipeline of the Start on stdin, say so, and run its plan's other passes."""
    start = pickle.load(sys.stdin.buffer)
    assert isinstance(start, CFGParallelStart)
    try:
        pipeline = load_pipeline(start.model, start.dtype, threads=start.threads)
        texts = pipeline.encode(start.plan)
        print(READY, flush=True)
        join(start.rendezvous, 1)
        for _ in pipeline.denoise(start.plan, texts, CFGParallelPair()):
            pass
    except Exception as error:  # whatever it is, the first process says it
        print(" ".join(str(error).split()) or type(error).__name__, flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
