"""Load generator: what a server does under requests that come when they come, seen from outside.

`job.py` describes the load and `prompts.py` what is asked; `ask.py` measures one request over a `transport.py`, on a
`clock.py`, reading the events of its stream (`sse.py`) as an answer (`answer.py`). `load.py` sends many, and `fleet.py`
shares a job between processes (`worker.py`). `run.py` is a run and its summary, `sweep.py` looks for the knee,
`server.py` asks the server about itself, `prediction.py` the price about the server. `findings.py` holds all of that;
`report.py` makes a document of it, with `figures.py`, and `export.py` JSON and CSV.

`engine/` has no server between: it runs workloads through the engine itself, beside what the roofs allow.
"""
