"""The audit of a forward: what aten computed, and which op of the model it was computed in."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from ridgeline.models.model import Model

aten = torch.ops.aten
PRODUCTS = {aten.mm, aten.addmm, aten.bmm, aten.baddbmm, aten.convolution}
OTHER_PRODUCTS = {aten.mv, aten.addmv, aten.dot, aten.vdot, aten.addbmm, aten.addr, aten._addmm_activation}
# What a model does between its ops: it looks at tensors in other shapes and picks rows, and computes nothing.
MOVES = {"index", "view", "split", "split_with_sizes", "detach", "alias"}


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
def audited(model: Model) -> Iterator[Audit]:
    """An Audit of the forwards that happen inside; the model's ops are the places where something is computed."""
    audit = Audit()
    handles = []
    for path, module in [("", model), *model.ops()]:

        def enter(_: nn.Module, __: Any, path: str = path) -> None:
            audit.running.append(path)

        def leave(_: nn.Module, __: Any, ___: Any) -> None:
            audit.running.pop()

        handles += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
    with audit:
        yield audit
    assert not audit.running
    for handle in handles:
        handle.remove()
