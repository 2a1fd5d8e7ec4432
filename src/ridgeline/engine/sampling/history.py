"""History: which tokens a request has seen and how often it has output each, kept up to date token by token.

Only requests with a penalty need one. A step then touches the D distinct tokens of the request and does not read the
prompt again.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class History:
    """The distinct tokens of one request, with output counts; owned by the request.

    Args:
        prompt_ids: the prompt.
        output_ids: what was generated so far; pass it to rebuild a history after a rollback.
    """

    __slots__ = ("_counts", "_ids", "_size", "_slot_of")

    def __init__(self, prompt_ids: Sequence[int], output_ids: Sequence[int] = ()) -> None:
        distinct = dict.fromkeys(prompt_ids)
        self._size = len(distinct)
        self._slot_of = dict(zip(distinct, range(self._size), strict=True))
        capacity = max(2 * self._size, 64)
        self._ids = np.zeros(capacity, np.int64)
        self._ids[: self._size] = list(distinct)
        self._counts = np.zeros(capacity, np.float32)
        for token in output_ids:
            self.append(token)

    def append(self, token: int) -> None:
        """Count one more output token, in constant time."""
        slot = self._slot_of.get(token)
        if slot is None:
            slot = self._add(token)
        self._counts[slot] += 1.0

    def _add(self, token: int) -> int:
        slot = self._size
        if slot == len(self._ids):
            self._ids = np.concatenate((self._ids, np.zeros_like(self._ids)))
            self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
        self._ids[slot] = token
        self._slot_of[token] = slot
        self._size += 1
        return slot

    @property
    def ids(self) -> NDArray[np.int64]:
        """The distinct tokens of prompt and output, int64[D], in order of first appearance."""
        return self._ids[: self._size]

    @property
    def counts(self) -> NDArray[np.float32]:
        """How often each of `ids` was output, float32[D]; 0 for a token that only the prompt has."""
        return self._counts[: self._size]
