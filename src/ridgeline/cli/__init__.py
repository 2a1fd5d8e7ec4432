"""The command line: one file a command; what they share is in `options.py`, `request.py` and `terminal.py`, and
`main.py` joins them."""
