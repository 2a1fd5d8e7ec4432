"""Four experiments to be run and read: what the texts on inference say, counted and measured.

Each file is one experiment, from its question to its answer in words; `page.py` is what an experiment gives back, and
`draw.py` puts it on a terminal or into a picture.
"""
