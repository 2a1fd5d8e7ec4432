"""The OpenAI-compatible HTTP server in front of `AsyncLLM`.

`http/` reads and writes connections. `routes/` turns a request into a `Generation` and its events into a response.
`service.py` submits it to the engine once `admission.py` admits it. `telemetry/` observes both. `app.py` combines the
routes, and `lifecycle.py` starts and stops everything.
"""
