"""An engine that is stepped for somebody else, who asks and hears in messages.

`messages.py` says what is asked and told, `loop.py` steps the engine by it, in a thread if need be, and `snapshot.py`
looks into it. `process.py` has the loop run in a process of its own, where a place of `place.py` is, to which messages
go as `ridgeline/frames.py` writes them: `child.py` is that process.
"""
