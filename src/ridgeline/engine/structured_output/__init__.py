"""Guidance: an answer held to a form, token by token, by a grammar that says what may come next.

`grammar.py` compiles what a request asks for, `grammar_vocabulary.py` is the vocabulary as the grammar library sees it,
`thinking.py` knows where a model's reasoning ends, and `output_constraint.py` follows one choice: its mask goes to the
sampler with the row.
"""

from ridgeline.engine.structured_output.output_constraint import OutputConstraint, StructuredOutputManager

__all__ = ["OutputConstraint", "StructuredOutputManager"]
