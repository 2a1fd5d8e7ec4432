"""A server on a clock of one's own: requests come, steps take their time, answers end."""


def finished(came: list[int], lengths: list[int], alone: int, each: int) -> list[int]:
    """When each request has its last token.

    Requests come at the moments `came`, in order, and want `lengths` tokens. A step gives a token to everybody who was
    there when it began, and takes `alone` and, for each of them, `each`. Steps follow each other without a pause while
    somebody wants a token; whoever comes at the moment at which one begins is in it.
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
