"""The best number of tokens to guess before a model checks them (speculative decoding)."""


def best_guesses(right: float, seconds: list[float]) -> int:
    """Return the number of guesses that gives the most tokens per second; of several, the smallest.

    A step that checks k guesses takes `seconds[k]`. Each guess is right with probability `right`; the guesses after a
    wrong one are discarded. A step yields the accepted guesses and one token of the model's own.
    """

    def rate(count: int) -> float:
        return sum(right**n for n in range(count + 1)) / seconds[count]

    return max(range(len(seconds)), key=rate)
