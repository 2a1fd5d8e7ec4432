"""Speech becomes text: windows of sound go through an engine one after the other, what it says becomes segments.

`speech_vocabulary.py` is what a speech model's tokens mean, `transcriber.py` the walk over the windows and what
timestamps say of them, `transcript_formats.py` how the result is written.
"""
