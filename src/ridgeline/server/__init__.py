"""The OpenAI-compatible server: HTTP in, `AsyncLLM` behind it.

`http/` reads and writes connections. `api/` makes a generation of a request, and an answer of its events. `service.py`
has the engine run it once `admission.py` lets it in; `telemetry/` is told. `app.py` joins the routes, `lifecycle.py`
all.
"""
