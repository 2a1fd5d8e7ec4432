"""One token's attention step with a KV cache."""

import math


def cached(
    query: list[float], key: list[float], value: list[float], keys: list[list[float]], values: list[list[float]]
) -> list[float]:
    """Append the new token's key and value to `keys` and `values`, then attend to all of them.

    The lists contain the keys and values of earlier steps and are changed in place. The result has the length of a
    value.
    """
    keys.append(key)
    values.append(value)
    scores = [sum(q * k for q, k in zip(query, each, strict=True)) / math.sqrt(len(query)) for each in keys]
    weights = [math.exp(score - max(scores)) for score in scores]
    return [sum(w * each[n] for w, each in zip(weights, values, strict=True)) / sum(weights) for n in range(len(value))]
