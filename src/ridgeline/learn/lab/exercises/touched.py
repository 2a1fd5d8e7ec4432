"""The number of experts that a batch uses."""


def touched(experts: int, each: int, batch: int) -> float:
    """Return the mean number of distinct experts used in a layer if each of `batch` tokens picks `each` at random.

    One token misses a given expert with probability 1 - each / experts. All tokens miss it with that number to the
    power of batch.
    """
    return experts * (1 - (1 - each / experts) ** batch)
