"""Simulate: the engine on a clock that the price moves.

`SimulatedReplica` is the engine itself (its scheduler, its KV cache, its rules for when a request ends) around an
executor that prices each plan instead of running it; `simulation` lets offered traffic come to it. What became of
requests and steps is a `RunLog`; `simulation_metrics` and `simulation_verdict` judge it, and `simulation_findings` puts
runs at several prices together into intervals. Nothing here decides what a step runs: this package has no second
scheduler that could drift from the first.
"""
