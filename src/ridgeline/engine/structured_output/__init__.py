"""Structured outputs: a grammar restricts a response, token by token, to a format.

`grammar.py` compiles the format that a request asks for, `grammar_vocabulary.py` is the vocabulary as the grammar
library sees it, `thinking.py` finds the end of a model's reasoning, and `output_constraint.py` follows one choice: the
sampler receives its mask with the row.
"""

from ridgeline.engine.structured_output.output_constraint import OutputConstraint, StructuredOutputManager

__all__ = ["OutputConstraint", "StructuredOutputManager"]
