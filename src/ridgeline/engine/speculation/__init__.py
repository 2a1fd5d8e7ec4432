"""Speculation: guesses at the next tokens of a request, which the model verifies several at a time in one step.

A token is drawn from the model's own logits with the number of its own position, whoever guessed it, and a guess counts
as far as it is equal: the text is the one that there is without guesses, greedy or sampled (`runner.py`). What is won
is steps, each of which reads all weights once (Leviathan et al., arXiv:2211.17192). Tree drafts and heads that a model
has for further tokens (MTP, Medusa, EAGLE) are not built.
"""
