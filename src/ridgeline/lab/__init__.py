"""Four experiments to be run and read: what the texts on inference say, counted and measured.

Each file is one experiment, from its question over what is counted to the document that says what came out.
"""
