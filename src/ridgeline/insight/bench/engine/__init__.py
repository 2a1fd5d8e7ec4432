"""An engine benchmark: the throughput of the engine itself on a batch of requests, compared with the roofline.

`workload.py` reads workloads and draws their prompts, `engine_run.py` runs one and records its steps, and
`measured_roofs.py` measures what the machine could do meanwhile. `bench_row.py` combines these into figures, each with
its ceiling and the share of it that was reached. `engine_bench_report.py` formats them as a document and as JSON.
"""
