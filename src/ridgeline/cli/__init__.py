"""The command line, with one file per command.

Shared parts are in `options.py`, `text_request.py` and `console.py`; `main.py` assembles the commands.
"""
