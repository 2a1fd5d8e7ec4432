"""A load generator that measures a server from the outside, under open-loop or closed-loop traffic.

`job.py` describes the load and `prompt_sources.py` the prompts. `request_sender.py` measures one request over a
`transport.py`, on a `clock.py`, and parses the events of its stream (`sse_parser.py`) as a response
(`streamed_response.py`). `load_generator.py` sends many requests, and `client_pool.py` shares a job between processes
(`client_worker.py`). `bench_run.py` is a run with its summary, `sweep.py` searches for the knee, `server_probe.py`
queries the server about itself, and `prediction.py` predicts its performance. `bench_findings.py` holds all results;
`bench_report.py` turns them into a document with charts from `figures.py`, and `bench_export.py` into JSON and CSV.

`engine/` measures without a server: it runs workloads on the engine itself and compares the result with the roofline.
"""
