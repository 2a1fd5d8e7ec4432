"""Speech becomes text: windows of sound go through an engine one after the other, what it says becomes segments.

`vocabulary.py` is what a speech model's tokens mean, `segments.py` what its timestamps say, `transcriber.py` the walk
over the windows, `formats.py` how the result is written.
"""
