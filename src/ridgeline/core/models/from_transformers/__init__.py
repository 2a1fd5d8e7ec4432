"""Models whose definition is a class of the installed `transformers` package, for architectures without a family.

The class itself computes. Its matrices, token tables, norms, experts and attention become ops, so that such a model is
priced, loaded, quantised and scheduled as any other. `transformers` is an optional dependency, which is only imported
if no family builds a config.
"""
