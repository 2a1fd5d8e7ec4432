"""Attention with a cache: one token's step."""

import math


def cached(
    query: list[float], key: list[float], value: list[float], keys: list[list[float]], values: list[list[float]]
) -> list[float]:
    """Keep the new token's key and value at the end of `keys` and `values`, then attend to all that is kept.

    The lists hold what earlier steps kept, and are changed. The result has the length of a value.
    """
    keys.append(key)
    values.append(value)
    scores = [sum(q * k for q, k in zip(query, each, strict=True)) / math.sqrt(len(query)) for each in keys]
    weights = [math.exp(score - max(scores)) for score in scores]
    return [sum(w * each[n] for w, each in zip(weights, values, strict=True)) / sum(weights) for n in range(len(value))]
