"""A server simulated with your own clock: requests arrive, steps take time, responses end."""


def finished(came: list[int], lengths: list[int], alone: int, each: int) -> list[int]:
    """Return the time at which each request has its last token.

    Requests arrive at the times `came`, in order, and each needs as many tokens as `lengths` states. A step gives a
    token to every request that was there when the step began. It takes `alone` plus `each` for every one of these
    requests. Steps follow each other without a pause while any request needs a token. A request that arrives at the
    moment a step begins is in that step.
    """
    left, ends, now = list(lengths), [0] * len(came), 0
    while any(left):
        there = [n for n, moment in enumerate(came) if moment <= now and left[n]]
        if not there:
            now = min(moment for n, moment in enumerate(came) if left[n])
            continue
        now += alone + each * len(there)
        for n in there:
            left[n] -= 1
            ends[n] = now
    return ends
