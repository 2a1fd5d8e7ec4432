"""Calibration: what this machine really does, in six constants a kernel class.

`timer.py` reads the clock; `roofs.py` measures bandwidth by working set and peaks by format; `trials.py` are the
models, `steps.py` times their ops where they stand, `probe.py` says at which pace, `observe.py` puts both together;
`overhead.py` is what lies between ops; `fit.py` finds the constants, `calibration_run.py` does it all; `calibration.py`
is the result, `calibration_file.py` keeps it, and `local_device.py` gives the machine as a Device.
"""
