"""The calibration of this machine: measured roofs, and six constants per kernel class, which are fitted.

`timer.py` reads the clock. `roofs.py` measures bandwidth by working set and peak FLOP/s by format. `trials.py` defines
the models whose ops `steps.py` times in place, `probe.py` measures the current pace of the machine, and `observe.py`
combines both. `overhead.py` measures the time between ops, `fit.py` fits the constants, and `calibration_run.py` runs
it all. `calibration.py` is the result, `calibration_file.py` stores it, and `local_device.py` returns the machine as a
Device.
"""
