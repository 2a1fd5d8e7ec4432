"""The audit of a forward: what aten computed, and which op of the model it was computed in."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from ridgeline.core.models.common.priced_module import PricedModule
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.backend import REFERENCE
from ridgeline.core.ops.convolution import Convolution
from ridgeline.core.ops.convolution2d import Convolution2d
from ridgeline.core.ops.cost import SOFTCAP_FLOPS
from ridgeline.core.ops.embedding import Embedding
from ridgeline.core.ops.experts import Experts
from ridgeline.core.ops.gated_delta import GatedDeltaRule
from ridgeline.core.ops.latent_attention import LatentAttention
from ridgeline.core.ops.linear import Linear, LMHead, Projections
from ridgeline.core.ops.modulation import Modulation
from ridgeline.core.ops.op import Op
from ridgeline.core.ops.recurrence import Recurrence, ShortConvolution
from ridgeline.core.ops.router import ExpertRouter
from ridgeline.core.ops.state_space import StateSpace
from ridgeline.core.ops.vector_quantiser import NearestCode
from ridgeline.core.ops.work import (
    CROSS,
    ENCODER,
    MAX_VERIFY_TOKENS,
    RECURRENT,
    AttentionPattern,
    RowAxis,
    StepSegment,
    Work,
)
from ridgeline.price.price import traced_calls

aten = torch.ops.aten
PRODUCTS = {aten.mm, aten.addmm, aten.bmm, aten.baddbmm, aten.convolution}
OTHER_PRODUCTS = {aten.mv, aten.addmv, aten.dot, aten.vdot, aten.addbmm, aten.addr, aten._addmm_activation}
# What a model does between its ops: it looks at tensors in other shapes and picks rows, and computes nothing.
MOVES = {"index", "view", "split", "split_with_sizes", "detach", "alias", "arange", "permute", "unsqueeze"}
HALVES = (
    "encode",
    "hidden",
    "head",
    "read",
    "denoise",
    "decode",
)  # all that runs, whoever calls a model, of those that it has

Calls = dict[str, tuple[Op, list[RowAxis]]]
"""Ops that a forward calls, and the space of the rows of each call, by path."""


class Audit(TorchDispatchMode):
    """Watches every aten call while an audited model runs, by path of the op in which it happens, "" between ops.

    flops: of matrix products and convolutions. calls: names of aten functions. read: how often the tensor that lies at
    an address went into a product. gathered: bytes of the rows taken from tables.
    """

    def __init__(self) -> None:
        super().__init__()
        self.running: list[str] = []
        self.flops: Counter[str] = Counter()
        self.calls: dict[str, Counter[str]] = defaultdict(Counter)
        self.read: dict[str, Counter[int]] = defaultdict(Counter)
        self.gathered: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.running:
            return func(*args, **kwargs)
        packet, path = func.overloadpacket, self.running[-1]
        if packet not in PRODUCTS and func._can_decompose():
            with self:  # in inference mode linear and matmul arrive whole
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        assert packet not in OTHER_PRODUCTS, f"{packet} in {path!r}: the audit does not count it"
        out = func(*args, **kwargs)
        self.calls[path][packet.__name__] += 1
        if packet in PRODUCTS:
            flops = products_flops(packet, args, out)
            assert flops == flop_registry[packet](*args, **kwargs, out_val=out)
            self.flops[path] += flops
            self.read[path].update(a.untyped_storage().data_ptr() for a in args if isinstance(a, Tensor))
        if packet is aten.embedding:
            self.gathered[path] += args[1].numel() * args[0].shape[1] * args[0].element_size()
        return out


def products_flops(packet: Any, args: Any, out: Tensor) -> int:
    """2 x every entry of the result x the length that was summed over."""
    if packet is aten.convolution:
        return 2 * out.numel() * args[1][0].numel()
    return 2 * out.numel() * args[0 if packet in (aten.mm, aten.bmm) else 1].shape[-1]


@contextmanager
def audited(model: PricedModule) -> Iterator[Audit]:
    """An Audit of the forwards that happen inside; the model's ops are the places where something is computed."""
    audit = Audit()
    backend = model.backend
    REFERENCE.bind(model)  # aten sees nothing of our kernels
    handles = []
    for path, op in model.ops():

        def enter(_: nn.Module, __: Any, path: str = path) -> None:
            audit.running.append(path)

        def leave(_: nn.Module, __: Any, ___: Any) -> None:
            audit.running.pop()

        handles += [op.register_forward_pre_hook(enter), op.register_forward_hook(leave)]
    halves = [half for half in HALVES if hasattr(model, half)]
    for half in halves:
        setattr(model, half, _watched(audit, getattr(model, half)))
    with audit:
        yield audit
    assert not audit.running
    for handle in handles:
        handle.remove()
    for half in halves:
        delattr(model, half)
    backend.bind(model)


def _watched(audit: Audit, call: Callable[..., Any]) -> Callable[..., Any]:
    """A call of the model, inside which what no op does is between ops."""

    def watched(*args: Any, **kwargs: Any) -> Any:
        audit.running.append("")
        out = call(*args, **kwargs)
        audit.running.pop()
        return out

    return watched


# -- what is to hold of an audited forward ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A forward that was audited, the work that it was, the segments it sums up, and the experts that each mixture was
    told to run, by path. lengths: of a denoiser, which has no segments, the rows of each picture by space. known: the
    calls of a forward, where they have been traced before."""

    model: PricedModule
    audit: Audit
    work: Work
    segments: Sequence[StepSegment]
    routers: dict[str, Tensor]
    lengths: Mapping[RowAxis, Sequence[int]] = field(default_factory=dict)
    known: Calls | None = None

    @cached_property
    def calls(self) -> Calls:
        """What a forward calls."""
        return calls_of(self.model) if self.known is None else self.known


@contextmanager
def routed(model: PricedModule) -> Iterator[dict[str, Tensor]]:
    """The experts picked that each mixture runs, by path."""
    routers: dict[str, Tensor] = {}
    handles = []
    for path, op in model.ops():
        if isinstance(op, Experts):

            def note(_: nn.Module, args: tuple[Tensor, ...], path: str = path) -> None:
                routers[path] = args[2]

            handles.append(op.register_forward_pre_hook(note))
    yield routers
    for handle in handles:
        handle.remove()


def calls_of(model: PricedModule) -> Calls:
    """Every op that a forward calls, and the space of the rows of each call, by path."""
    calls: Calls = {}
    for path, op, space in traced_calls(model):
        calls.setdefault(path, (op, []))[1].append(space)
    return calls


def check_products(run: Run) -> None:
    """Assert that every product is an op's, and that ops outside attention compute exactly what they declare."""
    calls = run.calls
    assert set(run.audit.flops) <= set(calls), "a product outside of all ops"
    assert set(run.audit.calls[""]) <= MOVES, "between ops the model computes"
    for path, (op, spaces) in calls.items():
        if isinstance(op, Recurrence):
            assert run.audit.flops[path] == recurrent_flops(run, op), path
        elif not isinstance(op, Attention):
            declared = sum(products_declared(op, run.work, space) for space in spaces)
            assert run.audit.flops[path] == declared, path


def products_declared(op: Op, work: Work, space: RowAxis) -> float:
    """FLOPs of products that one call of an op outside attention states."""
    if isinstance(op, Projections):  # whose activation is no product
        return sum(kernel.cost.total_flops for kernel in op.launches(work, space)[:1])
    if isinstance(op, LMHead):
        each = (0 if op.softcap is None else SOFTCAP_FLOPS) + (op.multiplier != 1)
        return op.cost(work, space).total_flops - each * work.rows.get(space, 0) * op.matrix.outputs
    if isinstance(op, Convolution):  # nor is its
        results = work.rows.get(space, 0) * op.results * op.outputs
        return op.cost(work, space).total_flops - op.FLOPS_PER_ELEMENT * results
    if isinstance(op, NearestCode):
        return op.product_flops(work.rows.get(space, 0))
    if isinstance(op, Modulation):
        return op.cost(work, space).total_flops - op.flops_around(work.rows[space])
    return op.cost(work, space).total_flops if isinstance(op, Linear | Experts | Convolution2d) else 0.0


def check_attention(run: Run) -> None:
    """Assert that attention is priced for the pairs of its mask, counted one by one."""
    for path, op in run.model.ops():
        if isinstance(op, LatentAttention):
            attend = [kernel for kernel in op.launches(run.work) if kernel.method == "attend_latent"]
            assert sum(kernel.cost.total_flops for kernel in attend) == latent_flops(run, op), path
        elif isinstance(op, Attention):
            pairs = sum(len(seen_pairs(segment, op.attention_pattern)) for segment in run.segments)
            pairs += sum(
                1
                for rows in run.lengths.get(op.attention_pattern.query_axis, ())
                for _ in product(range(rows), repeat=2)
            )
            attend = [kernel for kernel in op.launches(run.work) if kernel.method == "attend"]
            capped = 0 if op.softcap is None else SOFTCAP_FLOPS
            flops = op.heads * (2 * (op.spec.k_dim + op.value_dim) + capped) * pairs
            assert sum(kernel.cost.total_flops for kernel in attend) == flops, path
        elif isinstance(op, Recurrence):
            cost, known = op.cost(run.work), sum(s.kv_len > s.q_len for s in run.segments)
            assert sum(kernel.cost.total_flops for kernel in op.launches(run.work)) == cost.total_flops, path
            assert cost.kv_read_bytes == known * op.spec.slot_bytes, path
            assert cost.kv_write_bytes == len(run.segments) * op.spec.slot_bytes, path


def recurrent_flops(run: Run, op: Recurrence) -> float:
    """What a recurrence states, with what torch multiplies and a mask hides, and without the substitution, which aten
    does not count as a product; counted chunk by chunk."""
    rows = sum(segment.q_len for segment in run.segments)
    if isinstance(op, ShortConvolution):
        assert op.cost(run.work).total_flops == 2 * op.kernel_size * op.channels * rows
        return op.cost(run.work).total_flops
    if isinstance(op, StateSpace):
        chunks = [chunk for segment in run.segments for chunk in chunks_of(segment)]
        pairs = sum(chunk * (chunk - 1) / 2 for chunk in chunks)  # those of later positions
        hidden = 2 * (op.sizes.groups * op.sizes.state + op.sizes.heads * op.sizes.head) * pairs
        return op.cost(run.work).total_flops + hidden
    assert isinstance(op, GatedDeltaRule)
    s, hidden, substituted = op.sizes, 0.0, 0.0
    for segment in run.segments:
        for chunk in chunks_of(segment):
            later, earlier = chunk * (chunk - 1) / 2, chunk * (chunk - 1) / 2
            # Of the system its diagonal is known, and torch multiplies it too.
            diagonal = chunk if chunk > 1 else 0
            hidden += 2 * s.key_heads * s.key * (2 * later + diagonal) + 2 * s.value_heads * s.value * later
            substituted += 2 * s.value_heads * s.value * earlier
    return op.cost(run.work).total_flops + hidden - substituted


def chunks_of(segment: StepSegment) -> list[int]:
    """Rows of the chunks in which a recurrence runs a segment."""
    return [min(RECURRENT.size, segment.q_len - first) for first in range(0, segment.q_len, RECURRENT.size)]


def latent_flops(run: Run, op: LatentAttention) -> int:
    """What attention over latents takes in the forms that the engine takes, sequence by sequence."""
    sizes, flops, forms = op.sizes, 0, op.expanded(run.work.attention[op.attention_pattern])
    for segment in run.segments:
        expanded = forms[0 if segment.q_len == 1 else 1 if segment.q_len <= MAX_VERIFY_TOKENS else 2]
        rows = segment.kv_len if expanded else segment.q_len
        entries = sizes.key + sizes.value if expanded else 2 * sizes.latent + sizes.rotary
        flops += 2 * op.heads * rows * sizes.latent * (sizes.nope + sizes.value)
        flops += 2 * op.heads * entries * len(seen_pairs(segment, op.attention_pattern))
    return flops


def seen_pairs(segment: StepSegment, reach: AttentionPattern) -> set[tuple[int, int]]:
    """Query and key positions of every pair that the mask leaves."""
    queries, keys = range(segment.kv_len - segment.q_len, segment.kv_len), range(segment.kv_len)
    if reach.query_axis == ENCODER:  # an input does not see another
        each = segment.encoder_len // segment.encoder_inputs if segment.runs_encoder else 0
        return {
            (first + query, first + key)
            for first in range(0, each * segment.encoder_inputs, each or 1)
            for query, key in product(range(each), repeat=2)
        }
    if reach == CROSS:
        keys = range(segment.encoder_len)
    sees = {
        "causal": lambda query, key: key <= query,
        "window": lambda query, key: query - reach.size < key <= query,
        "chunked": lambda query, key: key <= query and key // reach.size == query // reach.size,
        "full": lambda query, key: True,
        "local": lambda query, key: abs(query - key) <= reach.size,
        "cross": lambda query, key: True,
    }[reach.kind]
    return {(query, key) for query in queries for key in keys if sees(query, key)}


def check_bytes(run: Run) -> None:
    """Assert that the weights read are those declared: matrices once a call, rows of tables, experts that were hit."""
    for path, (op, spaces) in run.calls.items():
        declared, read = [op.cost(run.work, space).weight_bytes for space in spaces], run.audit.read[path]
        own = {parameter.data_ptr(): parameter for parameter in op.parameters()}
        if isinstance(op, Embedding):
            assert run.audit.gathered[path] == sum(declared), path
        elif isinstance(op, Experts):
            check_experts(run, path, op)
        else:
            once = sum(parameter.nbytes for parameter in own.values())
            runs = [once if rows_of(run.work, op, space) else 0 for space in spaces]
            assert declared == runs, path
        if isinstance(op, Linear | Projections):
            calls = sum(1 for nbytes in declared if nbytes)
            added = op.e_score_correction_bias if isinstance(op, ExpertRouter) else None  # in no product
            factors = [address for address, parameter in own.items() if parameter is not added]
            if isinstance(op, ExpertRouter) and op.rule.wide and op.matrix.spec.dtype != torch.float32:
                continue  # torch's path widens the matrix first
            assert [read[address] for address in factors] == [calls] * len(factors) or not calls, path


def rows_of(work: Work, op: Op, space: RowAxis) -> int:
    """Rows of a call."""
    attends = isinstance(op, Attention | Recurrence)
    return work.attention[op.attention_pattern].total.queries if attends else work.rows.get(space, 0)


def check_experts(run: Run, path: str, op: Experts) -> None:
    """Assert that each expert picked was read once and no other, and that a lone token's bytes are exact."""
    hit, read = set(run.routers[path].flatten().tolist()), run.audit.read[path]
    for number, expert in enumerate(op):
        assert {read[factor.data_ptr()] for factor in expert.parameters()} == {int(number in hit)}, path
    expert_bytes = sum(matrix.nbytes for matrix in op[0].parameters())
    declared = op.cost(run.work).weight_bytes
    assert declared == pytest.approx(op.touched(run.work.tokens) * expert_bytes)
    assert op.active * expert_bytes <= declared * (1 + 1e-12)
    assert declared <= min(op.count, op.active * run.work.tokens) * expert_bytes * (1 + 1e-12)
    if run.work.tokens == 1:
        assert declared == pytest.approx(len(hit) * expert_bytes)
