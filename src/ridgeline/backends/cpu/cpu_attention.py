"""The C++ kernels for attention over KV pages, and for the rotary embedding before it, as functions of tensors.

Shapes: T rows of a step, N new rows of K and V, H heads, K kv heads, D head dim, W width of a value.
"""

from collections.abc import Sequence
from ctypes import POINTER, Structure, byref, c_float, c_int, c_int64, c_void_p, pointer
from itertools import accumulate, chain

import numpy as np
import torch
from torch import Tensor

from ridgeline.backends.cpu.library import Library, indices
from ridgeline.backends.cpu.structures import CODES, RowsStruct
from ridgeline.backends.kernel_support import AttentionScoring, KVCodes
from ridgeline.core.ops.matrix.operands import DTYPES

_REACHES = {"causal": 0, "window": 1, "chunked": 2, "cross": 3}


class _Codes(Structure):
    _fields_ = (
        ("code", c_int), ("k_scales", c_void_p), ("v_scales", c_void_p), ("stride", c_int64),
        ("k_scale", c_float), ("v_scale", c_float),
    )  # fmt: skip


class _AttentionLayer(Structure):
    _fields_ = (
        ("type", c_int), ("reach", c_int), ("reach_size", c_int64),
        ("heads", c_int64), ("kv_heads", c_int64), ("k_dim", c_int64), ("v_dim", c_int64),
        ("scale", c_float), ("softcap", c_float), ("sinks", c_void_p),
        ("k", c_void_p), ("v", c_void_p), ("page_stride", c_int64), ("page_size", c_int64),
        ("codes", POINTER(_Codes)),
    )  # fmt: skip


class _Sequences(Structure):
    _fields_ = (
        ("count", c_int64), ("starts", c_void_p), ("lengths", c_void_p), ("firsts", c_void_p), ("offsets", c_void_p),
        ("pages", c_void_p),
    )  # fmt: skip


class _NewRows(Structure):
    _fields_ = (
        ("count", c_int64), ("k", c_void_p), ("v", c_void_p), ("k_stride", c_int64), ("v_stride", c_int64),
        ("slots", c_void_p),
    )  # fmt: skip


class _Heads(Structure):
    _fields_ = (("at", c_void_p), ("heads", c_int64), ("dim", c_int64), ("stride", c_int64), ("to", c_void_p))


class CpuStepSequences:
    """The lengths and pages of a step's sequences for the layers of one KV group, created once for all these layers."""

    def __init__(
        self, starts: Sequence[int], lengths: Sequence[int], firsts: Sequence[int], pages: Sequence[Sequence[int]]
    ) -> None:
        """Describe the sequences of a step to the kernels; `change` documents the arguments."""
        self.struct = _Sequences()
        self.change(starts, lengths, firsts, pages)

    def change(
        self, starts: Sequence[int], lengths: Sequence[int], firsts: Sequence[int], pages: Sequence[Sequence[int]]
    ) -> None:
        """Replace the described sequences by those of another step, at the same address.

        Args:
            starts: First row of each sequence, and the total number of rows: B + 1 numbers.
            lengths: Number of positions of each sequence including this step, or the number from its encoder.
            firsts: Position with which the pages of each sequence begin.
            pages: Pages that the rows of each sequence see.
        """
        offsets = accumulate(map(len, pages), initial=0)
        # Stored, because the structure has only addresses.
        self._numbers = np.array([*starts, *lengths, *firsts, *offsets, *chain.from_iterable(pages)], np.int32)
        count, at, size = len(lengths), self._numbers.ctypes.data, self._numbers.itemsize
        self.rows = starts[-1]
        own = self.struct
        own.count, own.starts, own.lengths = count, at, at + (count + 1) * size
        own.firsts, own.offsets, own.pages = (
            at + (2 * count + 1) * size,
            at + (3 * count + 1) * size,
            at + (4 * count + 2) * size,
        )


class CpuPagedAttention:
    """The attention of one layer over its KV pages."""

    def __init__(
        self,
        library: Library,
        heads: int,
        scoring: AttentionScoring,
        k_PKSD: Tensor,
        v_PKSW: Tensor,
        value_dim: int,
        dtype: torch.dtype,
        codes: KVCodes | None = None,
    ) -> None:
        """Describe an attention layer and its KV pages to the kernels.

        Pages are a fixed distance apart, and the positions of each head in a page are contiguous.

        Args:
            library: Compiled kernels.
            heads: Number of query heads.
            scoring: Attention parameters.
            k_PKSD: Keys: a view of all pages, with S positions each.
            v_PKSW: Values: a view of all pages. W is 0 if the value is the first `value_dim` entries of the key.
            value_dim: Width of a value.
            dtype: Dtype of queries and results, and of keys and values unless they are codes.
            codes: Quantisation of the keys and values, or None.
        """
        _, kv_heads, size, dim = k_PKSD.shape
        latent = v_PKSW.shape[3] == 0
        assert k_PKSD.stride()[1:] == (size * dim, dim, 1), "the keys of a head in a page must be contiguous"
        assert latent or v_PKSW.stride()[1:] == (size * value_dim, value_dim, 1)
        self._attend = library.function(
            "attend", POINTER(_AttentionLayer), POINTER(_Sequences), POINTER(_NewRows), POINTER(RowsStruct), c_void_p
        )
        assert k_PKSD.dtype == (dtype if codes is None else torch.uint8), (
            "the dtype of the pages must match the layer's format"
        )
        self._number, self._scoring = DTYPES[dtype], scoring
        self._q, self._k, self._v, self._out = (heads, dim), (kv_heads, dim), (kv_heads, value_dim), (heads, value_dim)
        sinks = None if scoring.sinks_H is None else scoring.sinks_H.data_ptr()
        self._layer = _AttentionLayer(
            self._number, _REACHES[scoring.reach], scoring.size, heads, kv_heads, dim, value_dim,
            scoring.scale, scoring.softcap or 0.0, sinks, k_PKSD.data_ptr(), None if latent else v_PKSW.data_ptr(),
            k_PKSD.stride(0), size, None if codes is None else pointer(_struct(codes)),
        )  # fmt: skip

    def attend(
        self, sequences: CpuStepSequences, q_THD: Tensor, k_NKD: Tensor | None, v_NKW: Tensor | None, slots_N: Tensor
    ) -> Tensor:
        """Write new keys and values, if any, to their slots, and return the attention of the queries -> [T, H, W].

        Slots are int64 (page x S + offset).
        """
        q_THD = self._checked(q_THD, (sequences.rows, *self._q), "queries")
        new = _NewRows(0)
        if k_NKD is not None:
            k_NKD = self._checked(k_NKD, (len(slots_N), *self._k), "new keys")
            new = _NewRows(len(slots_N), k_NKD.data_ptr(), None, k_NKD.stride(0), 0, indices(slots_N))
            if self._layer.v:
                assert v_NKW is not None, "new values must be given, because the layer caches values"
                v_NKW = self._checked(v_NKW, (len(slots_N), *self._v), "new values")
                new.v, new.v_stride = v_NKW.data_ptr(), v_NKW.stride(0)
        out_THW = q_THD.new_empty(len(q_THD), *self._out)
        q = RowsStruct(self._number, q_THD.data_ptr(), len(q_THD), q_THD.shape[1] * q_THD.shape[2], q_THD.stride(0))
        self._attend(byref(self._layer), byref(sequences.struct), byref(new), byref(q), out_THW.data_ptr())
        return out_THW

    def _checked(self, x_THD: Tensor, shape: tuple[int, int, int], what: str) -> Tensor:
        """Check the shape and dtype of a tensor, and return it with contiguous rows."""
        assert DTYPES[x_THD.dtype] == self._number, f"{what} must have the layer's dtype"
        assert x_THD.shape == shape, (
            f"{what} have shape {tuple(x_THD.shape)}, but the step and the pages require {shape}"
        )
        return _rows(x_THD)


def rotate(library: Library, inputs: Sequence[Tensor], angles: tuple[Tensor, ...], start: int) -> list[Tensor]:
    """Apply the rotary embedding to several x_THD with the same rows, such as queries and keys, in one call."""
    function = library.function(
        "rotate", c_int, c_int64, POINTER(_Heads), c_int, c_void_p, c_void_p, c_int64, c_int64
    )  # fmt: skip
    inputs, dtype = [_rows(x_THD) for x_THD in inputs], inputs[0].dtype
    results = [torch.empty(x_THD.shape, dtype=x_THD.dtype) for x_THD in inputs]
    heads = [
        _Heads(x.data_ptr(), x.shape[1], x.shape[2], x.stride(0), to.data_ptr())
        for x, to in zip(inputs, results, strict=True)
    ]
    cos, sin = (x.contiguous() for x in angles[:2])
    assert all(len(x) == len(cos) and x.dtype == dtype for x in inputs), (
        "rotated inputs must have the same rows and dtype"
    )
    assert cos.shape == sin.shape, "each angle must have a cosine and a sine"
    assert cos.dtype == sin.dtype == torch.float32, "angles must be fp32"
    function(
        DTYPES[dtype], len(cos), (_Heads * len(heads))(*heads), len(heads), cos.data_ptr(), sin.data_ptr(),
        start, cos.shape[-1],
    )  # fmt: skip
    return results


def _struct(codes: KVCodes) -> _Codes:
    """Return the quantisation of keys and values as the C structure that kernels read.

    The scales are laid out as the pages are, with contiguous positions of a head.
    """
    found = _Codes(CODES[codes.kind], k_scale=codes.k_scale, v_scale=codes.v_scale)
    if (k_scales := codes.k_scales_PKS1) is not None:
        assert k_scales.stride()[1:3] == (k_scales.shape[2], 1), "the scales of a head in a page must be contiguous"
        found.k_scales, found.stride = k_scales.data_ptr(), k_scales.stride(0)
        found.v_scales = None if codes.v_scales_PKS1 is None else codes.v_scales_PKS1.data_ptr()
    return found


def _rows(x_THD: Tensor) -> Tensor:
    """Return a tensor whose rows are each contiguous, with any stride between rows."""
    return x_THD if x_THD.stride()[1:] == (x_THD.shape[2], 1) else x_THD.contiguous()
