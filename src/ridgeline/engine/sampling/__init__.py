"""From logits to tokens; the order in which things happen is listed in sampler.py."""

from ridgeline.engine.sampling.history import History
from ridgeline.engine.sampling.row import RowFailure, Sampled, SampleRow
from ridgeline.engine.sampling.sampler import sample

__all__ = ["History", "RowFailure", "SampleRow", "Sampled", "sample"]
