"""The command line: one file a command; what they share is in `options.py`, `text_request.py` and `console.py`, and
`main.py` joins them.
"""
