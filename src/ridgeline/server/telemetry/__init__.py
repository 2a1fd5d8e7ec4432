"""What the server tells its operator: metrics, logs, traces, the record of its traffic, the engine as it goes."""
