"""An engine that is stepped for somebody else, who asks and hears in messages.

`messages.py` says what is asked and told, `loop.py` steps the engine by it, and `snapshot.py` looks into it.
`thread.py` runs the loop in a thread; `process.py` has it run in a process of its own, where a place of `place.py` is,
to which messages go as `ridgeline/frames.py` writes them: `child.py` is that process.
"""
