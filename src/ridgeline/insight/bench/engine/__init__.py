"""Engine benchmark: what the engine itself does with a batch of requests, beside what the roofs of the machine allow.

`workload.py` reads workloads and draws their prompts, `engine_run.py` runs one and notes its steps, `measured_roofs.py`
says what the machine could do meanwhile. `bench_row.py` puts the three together: figures, each with its ceiling and its
share of it. `engine_bench_report.py` makes a document of rows, and JSON.
"""
