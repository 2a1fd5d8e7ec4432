"""Goodput: how many requests were answered in time."""


def in_time(requests: list[tuple[float, float, float, int]], ttft: float, tpot: float) -> int:
    """How many kept to both targets, in seconds.

    A request is when it came, when its first and its last token came, and how many tokens it got. `ttft`: the most
    until the first token. `tpot`: the most for each token after it, on average; one that got a single token has none.
    """
    good = 0
    for came, first, last, tokens in requests:
        quick = first - came <= ttft
        steady = tokens < 2 or (last - first) / (tokens - 1) <= tpot
        good += quick and steady
    return good
