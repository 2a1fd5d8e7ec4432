"""Ranks: one model over several processes, each of which holds a part of every matrix (Megatron-LM, arXiv:1909.08053).

The first has the engine, its scheduler and its sampler (`leader.py`); the others do as it says (`rank_child.py`, in a
process that `rank_processes.py` starts). What is added up between them goes over torch.distributed, by gloo.
"""

MOST_RANKS = 64
