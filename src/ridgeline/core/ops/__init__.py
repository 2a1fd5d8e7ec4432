"""The ops: the mathematics of all models, one file per op, each with its `forward` and its `cost`.

Start with `work.py` (the size of a step), `cost.py` (the FLOPs and bytes of a step) and `op.py` (the interface of all
ops). Then read any op.
"""
