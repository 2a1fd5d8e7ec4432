"""The command line: one small file a command, `main.py` joins them."""
