"""Speech transcription: audio windows go through an engine one after the other, and their tokens become segments.

`speech_vocabulary.py` has the meaning of a speech model's tokens, `transcriber.py` the loop over the windows and the
interpretation of timestamps, `transcript_formats.py` the output formats.
"""
