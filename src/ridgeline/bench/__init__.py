"""Load generator: what a server does under requests that come when they come, seen from outside.

`prompts.py` says what is asked; `sse.py`, `answer.py` and `ask.py` measure one request over a `transport.py`, on a
`clock.py`; `load.py` sends many, as `job.py` describes, and `fleet.py` shares a job between processes. `run.py` is a
run and its summary, `sweep.py` looks for the knee, `server.py` asks who is there, `prediction.py` what the price says
of it. `report.py` is all of that as a document, `export.py` as JSON and CSV.
"""
