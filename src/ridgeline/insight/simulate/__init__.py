"""Simulate: the engine on a clock that the price moves.

`Replica` is the engine itself (its scheduler, its ledger of pages, its rules for when a request ends) around an
executor that prices each plan instead of running it; `run` lets offered traffic come to it. What became of requests and
steps is a `Log`; `metrics` and `verdict` judge it, and `findings` puts runs at several prices together into intervals.
Nothing here decides what a step runs: this room has no second scheduler that could drift from the first.
"""
