"""Mixtures of experts as functions of tensors: the routing of rows to experts, and the outputs of the experts.

Shapes: T rows of a step, I inputs, D hidden, E experts, K experts a row.
"""

from collections.abc import Sequence
from ctypes import POINTER, Structure, byref, c_float, c_int, c_int64, c_void_p

import torch
from torch import Tensor

from ridgeline.backends.cpu.library import ACTIVATION_NUMBERS, Library, indices
from ridgeline.backends.cpu.structures import MatrixStruct, RowsStruct, matrix_of, rows_of
from ridgeline.core.ops.matrix.operands import DTYPES, Operands
from ridgeline.core.ops.router import RoutingRule

_CLAMPED = 7  # its number in Activation of native/activation.h


class _Routing(Structure):
    _fields_ = (
        ("active", c_int64), ("sigmoid", c_int), ("renormalise", c_int), ("scale", c_float), ("groups", c_int64),
        ("top_groups", c_int64), ("best", c_int64), ("correction", c_void_p),
    )  # fmt: skip


class _Gate(Structure):
    _fields_ = (("activation", c_int), ("alpha", c_float), ("limit", c_float))


class _Expert(Structure):
    _fields_ = (("gate", MatrixStruct), ("up", MatrixStruct), ("down", MatrixStruct))


class _ExpertLayer(Structure):
    _fields_ = (("experts", POINTER(_Expert)), ("count", c_int64), ("gate", _Gate))


class _Picks(Structure):
    _fields_ = (("active", c_int64), ("ids", c_void_p), ("weights", c_void_p))


def route(
    library: Library,
    x_TI: Tensor,
    own: Operands,
    logits: torch.dtype,
    rule: RoutingRule,
    correction_E: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Select experts for each row by the logits x W^T + b.

    If scores are equal, the first expert is selected.

    Args:
        library: Compiled kernels.
        x_TI: Rows.
        own: Matrix of the router.
        logits: Dtype of the logits: that of x, or fp32.
        rule: Routing rule, which must select by scores.
        correction_E: Score correction of each expert (fp32), or None.

    Returns:
        Weights fp32 and ids int64 of the selected experts, each [T, K].
    """
    function = library.function(
        "route", POINTER(RowsStruct), POINTER(MatrixStruct), c_int, POINTER(_Routing), c_void_p, c_void_p
    )  # fmt: skip
    shape = x_TI.shape[0], rule.active
    weights_TK, picked_TK = x_TI.new_empty(shape, dtype=torch.float32), x_TI.new_empty(shape, dtype=torch.int64)
    correction = None
    if correction_E is not None:
        assert correction_E.dtype == torch.float32, "the correction bias must be fp32"
        correction = correction_E.data_ptr()
    routing = _Routing(
        rule.active, rule.scores == "sigmoid", rule.renormalise, rule.scale, rule.groups, rule.top_groups,
        1 if rule.group_score == "best" else 2, correction,
    )  # fmt: skip
    matrix = matrix_of(own, x_TI.dtype, x_TI.shape[1])
    function(rows_of(x_TI), matrix, DTYPES[logits], routing, weights_TK.data_ptr(), picked_TK.data_ptr())
    return weights_TK, picked_TK


class LayerExperts:
    """The experts of one layer as one kernel, with the addresses of their matrices."""

    def __init__(
        self,
        library: Library,
        experts: Sequence[Sequence[Operands]],
        activation: str | tuple[float, float],
        hidden: int,
        dtype: torch.dtype,
    ) -> None:
        """Describe the experts of a layer to the kernel that runs them.

        Args:
            library: Compiled kernels.
            experts: Gate [F, D], up [F, D] and down [D, F] of each expert, all plain or all in the same code format.
            activation: Name in config.json, or alpha and limit of a clamped gate.
            hidden: Width of the rows.
            dtype: Dtype of the rows.
        """
        self._run = library.function(
            "experts", POINTER(_ExpertLayer), POINTER(RowsStruct), POINTER(_Picks), c_void_p, c_int64, c_void_p
        )
        self._held = experts  # because the structures have only addresses
        kinds = {own.codes and own.codes.kind for expert in experts for own in expert}
        assert len(kinds) == 1, "all matrices of the experts must have the same storage format"
        width = len(experts[0][0].weight)
        table = (_Expert * len(experts))()
        for own, (gate, up, down) in zip(table, experts, strict=True):
            assert (len(gate.weight), len(up.weight), len(down.weight)) == (width, width, hidden), (
                "all experts of a layer must have the same sizes"
            )
            own.gate, own.up, own.down = (
                matrix_of(gate, dtype, hidden), matrix_of(up, dtype, hidden), matrix_of(down, dtype, width),
            )  # fmt: skip
        by = _Gate(ACTIVATION_NUMBERS[activation]) if isinstance(activation, str) else _Gate(_CLAMPED, *activation)
        self._layer = _ExpertLayer(table, len(table), by)
        self._hidden, self._dtype = hidden, dtype

    def run(self, x_TD: Tensor, weights_TK: Tensor, picked_TK: Tensor, onto_TD: Tensor | None) -> Tensor:
        """Return the weighted sum of each row's experts, added to `onto_TD` unless that is None, in one kernel call.

        Every id must be that of an expert.
        """
        assert (x_TD.dtype, x_TD.shape[1]) == (self._dtype, self._hidden), (
            "rows must have the dtype and width that the experts read"
        )
        assert weights_TK.dtype == torch.float32, "routing weights must be fp32"
        assert weights_TK.is_contiguous(), "routing weights must be contiguous"
        assert weights_TK.shape == picked_TK.shape == (len(x_TD), picked_TK.shape[1]), (
            "each picked expert must have a weight"
        )
        onto, stride = None, 0
        if onto_TD is not None:
            assert (onto_TD.dtype, onto_TD.shape) == (x_TD.dtype, x_TD.shape), (
                "the tensor to add to must have the dtype and shape of the rows"
            )
            onto, stride = rows_of(onto_TD).at, onto_TD.stride(0)
        out_TD = x_TD.new_empty(x_TD.shape)
        picks = _Picks(picked_TK.shape[1], indices(picked_TK), weights_TK.data_ptr())
        self._run(byref(self._layer), rows_of(x_TD), picks, onto, stride, out_TD.data_ptr())
        return out_TD
