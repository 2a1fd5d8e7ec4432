"""Experiments to run and read, which count and measure what textbooks on inference state; and exercises.

Most files are one experiment each, from its question through the measurement to the document with the results.
`experiments.py` lists those with stated expectations, `cost_calculator.py` computes single figures,
`instrumented_model.py` gives access to the inside of the built-in model, `statements_*.py` have statements of
textbooks, and `exercise.py` and `exercises/` have the exercises for readers.
"""
