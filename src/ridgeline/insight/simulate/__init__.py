"""A serving simulator: the real engine on a clock that predicted step prices advance.

`SimulatedReplica` is the engine itself (its scheduler, KV cache and stop rules) with an executor that prices each step
plan instead of running it. `simulation` feeds it offered traffic. A `RunLog` records what happened to each request and
step; `simulation_metrics` and `simulation_verdict` evaluate it, and `simulation_findings` combines runs at several
prices into intervals. This package never decides what a step runs, so there is no second scheduler that could drift
from the real one.
"""
