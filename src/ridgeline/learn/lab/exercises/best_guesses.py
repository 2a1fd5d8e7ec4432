"""How many tokens to guess before a model checks them."""


def best_guesses(right: float, seconds: list[float]) -> int:
    """The number of guesses that gives most tokens a second; of several, the smallest.

    `seconds[k]` is what a step takes that checks k guesses. Each is right with the chance `right`; those after a wrong
    one are thrown away. A step gives the guesses that are kept, and one token of the model's own.
    """

    def rate(count: int) -> float:
        return sum(right**n for n in range(count + 1)) / seconds[count]

    return max(range(len(seconds)), key=rate)
