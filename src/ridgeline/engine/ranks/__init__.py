"""Tensor parallelism: one model in several processes, each of which holds a part of every matrix (arXiv:1909.08053).

This is the scheme of Megatron-LM. The first rank has the engine, its scheduler and its sampler (`leader.py`). The
others execute its commands (`rank_child.py`, in a process that `rank_processes.py` starts). All-reduces go over
torch.distributed with gloo.
"""

MOST_RANKS = 64
