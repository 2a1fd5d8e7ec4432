"""Goodput: the number of requests that were answered in time."""


def in_time(requests: list[tuple[float, float, float, int]], ttft: float, tpot: float) -> int:
    """Return the number of requests that met both targets, in seconds.

    A request is a tuple: its arrival time, the times of its first and its last token, and its number of tokens. `ttft`
    is the maximum time from arrival to the first token. `tpot` is the maximum average time for each token after the
    first; it does not apply to a request with a single token.
    """
    good = 0
    for came, first, last, tokens in requests:
        quick = first - came <= ttft
        steady = tokens < 2 or (last - first) / (tokens - 1) <= tpot
        good += quick and steady
    return good
