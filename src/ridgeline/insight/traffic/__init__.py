"""Traffic: the arrival times, lengths and records of requests.

`workload_trace.py` reads recorded requests; `arrivals.py`, `profile.py` and `lengths.py` draw synthetic ones;
`offered.py` and `conversations.py` turn both into open-loop and closed-loop traffic. `routers.py` chooses the replica
for each request and `scaling.py` the number of replicas. `request_record.py` defines the record of one request as its
client observed it, and `series.py` computes time series of a run; `percentiles.py`, `slo.py` and `stationarity.py`
evaluate a run, and `summary.py` combines them. Arrivals and records are in integer nanoseconds of one monotonic clock.
This package depends on neither engine nor server.
"""
