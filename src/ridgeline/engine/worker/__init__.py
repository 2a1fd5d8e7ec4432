"""An engine that is stepped for somebody else, who asks and hears in messages.

`engine_messages.py` says what is asked and told, `loop.py` steps the engine by it, in a thread if need be, and
`snapshot.py` looks into it. `engine_process.py` has the loop run in a process of its own, where a place of
`process_handle.py` is, to which messages go as `util/frames.py` writes them: `engine_child.py` is that process.
"""
