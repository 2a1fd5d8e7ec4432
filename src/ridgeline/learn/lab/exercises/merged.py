"""A word becomes tokens: pairs of neighbours are joined, and the pair that was learned first goes first."""

from itertools import pairwise


def merged(word: str, merges: list[tuple[str, str]]) -> list[str]:
    """Return the word's tokens, starting from its letters.

    `merges` are pairs in the order in which they were learned. Join the pair that comes first in this list, at its
    first place in the word. Repeat this until no pair of neighbours is in the list.
    """
    rank = {tuple(pair): place for place, pair in enumerate(merges)}
    parts = list(word)
    while True:
        known = [(rank[pair], at) for at, pair in enumerate(pairwise(parts)) if pair in rank]
        if not known:
            return parts
        _, at = min(known)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
