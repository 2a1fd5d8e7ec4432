"""Views of a ledger: `story.py` is the terminal, in order; the others are its parts, and files for programs."""
