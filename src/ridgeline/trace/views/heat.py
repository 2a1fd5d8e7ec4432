"""Heat maps and bars in characters, for a terminal that may know no colour."""

from collections.abc import Sequence
from itertools import pairwise

SHADES = " ·░▒▓█"
ATTENTION = (0.02, 0.05, 0.15, 0.4)  # weights of many positions are small: the steps grow
EVEN = (0.2, 0.4, 0.6, 0.8)
LEGEND = "· under 2%  ░ to 5%  ▒ to 15%  ▓ to 40%  █ more"
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def shade(share: float, steps: Sequence[float] = ATTENTION) -> str:
    """A character as dark as a share between 0 and 1; only what rounds to 0.00 is blank."""
    return SHADES[0] if share < 0.005 else SHADES[1 + sum(share >= step for step in steps)]


def heat_row(shares: Sequence[float], columns: int, steps: Sequence[float] = ATTENTION) -> str:
    """Shares in at most `columns` characters; where they are more, each character is the darkest of its neighbours."""
    if len(shares) <= columns:
        return "".join(shade(share, steps) for share in shares)
    edges = [round(index * len(shares) / columns) for index in range(columns + 1)]
    return "".join(shade(max(shares[low:high]), steps) for low, high in pairwise(edges))


def bar(start: float, end: float, columns: int) -> str:
    """A bar from one share of `columns` to another; a short one is a sliver, never nothing."""
    first, last = int(start * columns), end * columns
    whole = int(last) - first
    rest = _EIGHTHS[round((last - int(last)) * 8)] if last < columns else ""
    filled = "█" * whole + (rest if rest != " " else "")
    return " " * min(first, columns - 1) + (filled or "▏")
