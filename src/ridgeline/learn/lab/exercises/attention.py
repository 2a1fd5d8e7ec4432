"""Attention of one query over a handful of keys and values, with nothing but lists."""

import math


def attention(query: list[float], keys: list[list[float]], values: list[list[float]]) -> list[float]:
    """Return the values, mixed by how well their keys match the query.

    The score of a key is its dot product with the query divided by the square root of their length. Softmax turns the
    scores into weights. The result has the length of a value.
    """
    scores = [sum(q * k for q, k in zip(query, key, strict=True)) / math.sqrt(len(query)) for key in keys]
    largest = max(scores)
    weights = [math.exp(score - largest) for score in scores]
    total = sum(weights)
    return [sum(w / total * value[n] for w, value in zip(weights, values, strict=True)) for n in range(len(values[0]))]
