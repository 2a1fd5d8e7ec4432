"""Traffic: the arrival times, lengths and records of requests.

`workload_trace.py` reads recorded requests; `arrivals.py`, `profile.py` and `lengths.py` draw synthetic ones;
`offered.py` and `conversations.py` turn both into open-loop and closed-loop traffic. `routers.py` chooses the replica
for each request and `scaling.py` the number of replicas. `request_record.py` is what a client observed of one request,
`series.py` a run over time; `percentiles.py`, `slo.py` and `stationarity.py` evaluate a run, and `summary.py` combines
them. Times are integer nanoseconds of one monotonic clock. This package depends on neither engine nor server.
"""
