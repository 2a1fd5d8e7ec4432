"""Experiments to be run and read: what the texts on inference say, counted and measured; and exercises.

A file is one experiment, from its question over what is counted to the document that says what came out.
`experiments.py` lists those that say beforehand what they expect, `cost_calculator.py` answers for single figures,
`instrumented_model.py` opens the built-in model, `statements_*.py` are what texts say, `exercise.py` and `exercises/`
are for the reader to write.
"""
