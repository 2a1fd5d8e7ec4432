"""How many experts a batch touches."""


def touched(experts: int, each: int, batch: int) -> float:
    """Distinct experts of a layer that are hit on average, when each of `batch` tokens picks `each` of them at random.

    One token misses a given expert with chance 1 - each / experts. All of them miss it with that to the power of batch.
    """
    return experts * (1 - (1 - each / experts) ** batch)
