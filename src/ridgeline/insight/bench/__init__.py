"""Load generator: what a server does under requests that come when they come, seen from outside.

`job.py` describes the load and `prompt_sources.py` what is asked; `request_sender.py` measures one request over a
`transport.py`, on a `clock.py`, reading the events of its stream (`sse_parser.py`) as an answer
(`streamed_response.py`). `load_generator.py` sends many, and `client_pool.py` shares a job between processes
(`client_worker.py`). `bench_run.py` is a run and its summary, `sweep.py` looks for the knee, `server_probe.py` asks the
server about itself, `prediction.py` the price about the server. `bench_findings.py` holds all of that;
`bench_report.py` makes a document of it, with `figures.py`, and `bench_export.py` JSON and CSV.

`engine/` has no server between: it runs workloads through the engine itself, beside what the roofs allow.
"""
