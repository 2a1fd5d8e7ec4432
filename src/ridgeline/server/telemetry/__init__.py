"""The telemetry of the server: metrics, logs, traces, recordings of the traffic, and the live state of the engine."""
