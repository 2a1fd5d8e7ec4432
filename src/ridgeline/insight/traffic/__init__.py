"""Traffic: when requests come, how long they are, and what became of them.

`workload_trace.py` reads requests that were recorded, `arrivals.py`, `profile.py` and `lengths.py` draw others,
`offered.py` and `conversations.py` have them come; `routers.py` and `scaling.py` say which replica gets one, and how
many replicas there are. `request_record.py` is what was seen of one request; `series.py` is a run moment by moment,
`percentiles.py`, `slo.py` and `stationarity.py` judge it, and `summary.py` puts that together. Times are integer
nanoseconds of one monotonic clock. This room knows no engine and no server.
"""
