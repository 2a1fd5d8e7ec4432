"""The engine behind an interface of messages, in a thread or a process of its own.

`engine_messages.py` defines the messages, `loop.py` steps the engine and handles them, in a thread if need be, and
`snapshot.py` describes what the engine holds. `engine_process.py` runs the loop in a process of its own, through a
handle of `process_handle.py`, and exchanges messages with it as frames (`util/frames.py`): `engine_child.py` is that
process.
"""
