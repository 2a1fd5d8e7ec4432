"""Sampling a token from logits: temperature, softmax, and one number between 0 and 1."""

import math


def drawn(logits: list[float], temperature: float, u: float) -> int:
    """Return the index of the token that u falls on if all lie side by side, each as wide as its probability.

    The probabilities are softmax of logits / temperature. Temperature 0 takes the largest logit, the first of equal
    ones.
    """
    largest = max(logits)
    if temperature == 0:
        return logits.index(largest)
    weights = [math.exp((logit - largest) / temperature) for logit in logits]
    end, total = 0.0, sum(weights)
    for token, weight in enumerate(weights):
        end += weight / total
        if u < end:
            return token
    return len(logits) - 1
