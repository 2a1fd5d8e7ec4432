"""What runs in the second process of a pair: `python -m ridgeline.diffusion.pair_child`, started by pair_process.py."""

import pickle
import sys

from ridgeline.diffusion.loading import load_pipeline
from ridgeline.diffusion.pair import Pair
from ridgeline.diffusion.pair_process import READY, Order, join


def main() -> None:
    """Load the pipeline of the order on stdin, say so, and run its plan's other passes."""
    order = pickle.load(sys.stdin.buffer)
    assert isinstance(order, Order)
    try:
        pipeline = load_pipeline(order.model, order.dtype, threads=order.threads)
        texts = pipeline.encode(order.plan)
        print(READY, flush=True)
        join(order.rendezvous, 1)
        for _ in pipeline.denoise(order.plan, texts, Pair()):
            pass
    except Exception as error:  # whatever it is, the first process says it
        print(" ".join(str(error).split()) or type(error).__name__, flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
