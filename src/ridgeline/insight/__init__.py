"""What a run costs and why: traces, calibration, simulated traffic, benchmarks, checks."""
