"""Speculative decoding: guesses at a request's next tokens, which the model verifies, several at a time, in one step.

A token is sampled from the model's own logits with the random number of its own position, whatever guessed it, and a
guess counts as long as it is equal. The text is therefore the same as without guesses, greedy or sampled (`runner.py`).
Fewer steps are needed, each of which reads all weights once (Leviathan et al., arXiv:2211.17192). Tree drafts and
prediction heads of the model itself (MTP, Medusa, EAGLE) are not built.
"""
