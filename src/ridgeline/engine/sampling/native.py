"""The sampler on a kernel of the C++ library (native/sample.h), whose thread pool processes the rows.

The kernel gets a structure per row, in which it returns the token, the largest logits and the reports. A token may
differ from numpy's if the random number that it is drawn with, or a cut, lies within rounding of a boundary.

Legend: R rows, V vocabulary, K alternatives.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from ridgeline.core.ops.backend import SamplingKernel
from ridgeline.engine.sampling.candidates import FloatsC
from ridgeline.engine.sampling.logits import must_continue, needs_adjusting
from ridgeline.engine.sampling.sample_row import PROCESSED, RAW, PromptLogprob, Report, RowFailure, Sampled, SampleRow
from ridgeline.engine.sampling.sampler import Sampler

_REPORT = np.dtype([("own", "f8"), ("count", "i8"), ("ids", "u8"), ("shares", "u8")])
_SETTINGS = np.dtype(
    [
        ("temperature", "f8"), ("top_p", "f8"), ("min_p", "f8"), ("top_k", "i8"), ("alternatives", "i8"),
        ("seed", "u8"), ("position", "u8"), ("choice", "u8"),
    ]
)  # fmt: skip
_CHANGES = np.dtype(
    [
        ("biased", "u8"), ("biases", "u8"), ("bias_count", "i8"), ("forbidden", "u8"), ("forbidden_count", "i8"),
        ("allowed", "u8"), ("history", "u8"), ("counts", "u8"), ("history_count", "i8"),
        ("repetition", "f8"), ("frequency", "f8"), ("presence", "f8"),
    ]
)  # fmt: skip
_SAMPLING = np.dtype(
    [
        ("logits", "u8"), ("settings", _SETTINGS), ("changes", _CHANGES),
        ("token", "i8"), ("raw_top", "f8"), ("top", "f8"), ("raw", _REPORT), ("processed", _REPORT),
    ]
)  # fmt: skip
"""The layout of the C structure with one row's sampling inputs, as in native/kernels.h, with addresses as numbers."""

_64_BITS = 0xFFFFFFFFFFFFFFFF


class NativeSampler(Sampler):
    """The sampler on a kernel for logits in this machine's memory."""

    def __init__(self, kernel: SamplingKernel) -> None:
        self._kernel = kernel

    @override
    def _sample(self, logits_RV: Tensor, rows: Sequence[SampleRow]) -> list[Sampled | RowFailure]:
        samplings = _Samplings(logits_RV.numpy())
        samplings.own["token"] = -1
        samplings.own["settings"] = [_settings(row) for row in rows]
        for index, row in enumerate(rows):
            if needs_adjusting(row):
                samplings.change(index, row)
        samplings.run(self._kernel)
        found = zip(rows, *(samplings.own[field].tolist() for field in ("token", "raw_top", "top")), strict=True)
        return [
            _failure(raw_top, top)
            or (Sampled(token) if row.params.logprobs is None else Sampled.reported(token, *samplings.reports(index)))
            for index, (row, token, raw_top, top) in enumerate(found)
        ]

    @override
    def _score(
        self, logits_RV: Tensor, tokens: Sequence[int], alternatives: Sequence[int]
    ) -> list[PromptLogprob | RowFailure]:
        samplings = _Samplings(logits_RV.numpy())
        samplings.own["token"] = samplings.known(np.array(tokens, np.int64))
        samplings.own["settings"]["alternatives"] = alternatives
        samplings.run(self._kernel)
        return [
            _failure(top, top) or PromptLogprob(token, *samplings.reports(index)[0])
            for index, (token, top) in enumerate(zip(tokens, samplings.own["raw_top"].tolist(), strict=True))
        ]


def _settings(row: SampleRow) -> tuple[float, float, float, int, int, int, int, int]:
    own = row.params
    return (
        0.0 if own.greedy else own.temperature,
        own.top_p,
        own.min_p,
        own.top_k,
        -1 if own.logprobs is None else own.logprobs,
        row.seed & _64_BITS,
        row.position,
        row.choice,
    )


def _failure(raw_top: float, top: float) -> RowFailure | None:
    """Return why no token could be chosen from a row of logits; None if one could."""
    if math.isfinite(top):
        return None
    return RowFailure.of(top, PROCESSED) if math.isfinite(raw_top) else RowFailure.of(raw_top, RAW)


class _Samplings:
    """The structures of a batch's rows for the sampling kernel, and the memory that they point to."""

    def __init__(self, logits_RV: FloatsC) -> None:
        self.own = np.zeros(len(logits_RV), _SAMPLING)
        self._logits_RV, self._held = logits_RV, list[NDArray[Any]]()
        self._point("logits", logits_RV)

    def change(self, index: int, row: SampleRow) -> None:
        """Fill in the bias, mask and penalties that change a row's logits."""
        own, params, bias = self.own[index]["changes"], row.params, row.params.logit_bias
        if bias:
            own["biased"] = self._tokens(np.fromiter(bias, np.int64, len(bias)))
            own["biases"] = self._address(np.fromiter(bias.values(), np.float32, len(bias)))
            own["bias_count"] = len(bias)
        if must_continue(row):
            own["forbidden"] = self._tokens(np.array(row.end_ids, np.int64))
            own["forbidden_count"] = len(row.end_ids)
        if row.allowed is not None:
            assert row.allowed.shape == ((self._logits_RV.shape[1] + 31) // 32,), (
                "the mask has one bit per token, in words of 32 bits"
            )
            own["allowed"] = self._address(np.ascontiguousarray(row.allowed, np.uint32))
        if params.uses_history:
            assert row.history is not None
            own["history"], own["counts"] = self._tokens(row.history.ids), self._address(row.history.counts)
            own["history_count"] = len(row.history.ids)
            own["repetition"], own["frequency"] = params.repetition_penalty, params.frequency_penalty
            own["presence"] = params.presence_penalty

    def run(self, kernel: SamplingKernel) -> None:
        """Have the kernel choose a token for each row and fill in the reports."""
        most = int(self.own["settings"]["alternatives"].max(initial=-1))
        if most >= 0:
            self._reports = {name: self._room_for_reports(name, most) for name in ("raw", "processed")}
        kernel(self.own.ctypes.data, *self._logits_RV.shape)

    def reports(self, index: int) -> tuple[Report, Report]:
        """Return a row's reports, of the raw and of the processed distribution."""
        raw, processed = (self._report(index, name) for name in ("raw", "processed"))
        return raw, processed

    def _report(self, index: int, name: str) -> Report:
        own, listed = self.own[index][name], slice(int(self.own[index][name]["count"]))
        ids, shares = (of_RK[index, listed].tolist() for of_RK in self._reports[name])
        return float(own["own"]), tuple(zip(ids, shares, strict=True))

    def _room_for_reports(self, name: str, most: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        ids_RK, shares_RK = np.zeros((len(self.own), most), np.int64), np.zeros((len(self.own), most))
        self._point((name, "ids"), ids_RK)
        self._point((name, "shares"), shares_RK)
        return ids_RK, shares_RK

    def _point(self, field: str | tuple[str, str], rows: NDArray[Any]) -> None:
        """Set a pointer in each structure to a row of an array."""
        name, *inner = (field,) if isinstance(field, str) else field
        pointers = self.own[name][inner[0]] if inner else self.own[name]
        pointers[:] = self._address(rows) + np.arange(len(rows)) * rows.strides[0]

    def known(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return token ids after a check of their range, because the kernel indexes the logits with them unchecked."""
        assert not len(ids) or (ids.min() >= 0 and ids.max() < self._logits_RV.shape[1]), (
            "a token id is out of vocabulary"
        )
        return ids

    def _tokens(self, ids: NDArray[np.int64]) -> int:
        """Return the address of an array of token ids, after a check of their range."""
        return self._address(self.known(ids))

    def _address(self, array: NDArray[Any]) -> int:
        """Return the address of an array, and keep the array alive as long as the structures that point to it."""
        self._held.append(array)
        return int(array.ctypes.data)
