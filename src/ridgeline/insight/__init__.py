"""Tools that explain what a run costs: traces, calibration, traffic simulation, benchmarks and model checks."""
