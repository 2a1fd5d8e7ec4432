"""Everything that computes: one file an op, its `forward` beside its `cost`.

Read `work.py` (what a step asks), `cost.py` (what must be done for it), `op.py` (the contract), then any op.
"""
