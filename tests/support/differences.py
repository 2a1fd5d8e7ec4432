"""Which module of ours is the first that says something else than transformers' module of the same name."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.core.models.common import blocks
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.families import gpt2
from ridgeline.core.ops.activation import ActivatedProjections
from ridgeline.core.ops.experts import Experts
from ridgeline.core.ops.linear import LMHead, Projections
from ridgeline.core.ops.norm import AddNorm
from ridgeline.core.ops.op import Op
from ridgeline.core.ops.router import ExpertRouter
from support.engines import uncached_logits

TOLERANCE = 2e-5
_THEIR_NAMES = (("model.rotary", "model.rotary_emb"), ("model.local_rotary", "model.rotary_emb.sliding_attention"))

Event = tuple[str, str]  # "input of" or "output of", and a module's path


@contextmanager
def recorded(model: nn.Module) -> Iterator[dict[Event, list[Tensor]]]:
    """The tensors that go into and come out of every module, in the order in which they do."""
    events: dict[Event, list[Tensor]] = {}
    handles = []
    for path, module in model.named_modules():

        def before(module: nn.Module, args: Any, kwargs: Any, path: str = path) -> None:
            events["input of", path] = _stream(_tensors((*args, *kwargs.values())), module)[:1]

        def after(module: nn.Module, args: Any, out: Any, path: str = path) -> None:
            if "sliding_attention" in args:  # transformers has both ropes in one module, asked in no order
                path = f"{path}.sliding_attention"
            tensors = _tensors(out if isinstance(out, tuple) else (out,))
            if isinstance(module, Projections) and not isinstance(module, ActivatedProjections):
                for name, matrix in zip(module.names, module.matrices, strict=True):
                    parts = [tensors.pop(0) for _ in matrix.spec.own_parts]
                    events["output of", f"{path}.{name}"] = [torch.cat(parts, dim=-1)]
            elif type(module).__name__.endswith("Router"):  # weights of the picks; transformers has logits first
                weights_TK = tensors[0 if isinstance(module, ExpertRouter) else 1]
                events["output of", path] = [weights_TK.sort(dim=-1).values]
            elif isinstance(module, Experts) and module.adds:
                events["output of", path] = []  # transformers adds the shared expert outside of them
            elif isinstance(module, LMHead) and module.flops_per_logit:
                events["output of", path] = []  # transformers scales and caps the logits outside of its head
            else:
                events["output of", path] = tensors[1:] if isinstance(module, AddNorm) else _stream(tensors, module)

        handles += [module.register_forward_pre_hook(before, with_kwargs=True), module.register_forward_hook(after)]
    try:
        yield events
    finally:
        for handle in handles:
            handle.remove()


def first_difference(ours: Model, theirs: nn.Module, ids: Sequence[int]) -> str:
    """One line: the first input or output that differs, what agreed last, and our ops that ran in between."""
    with recorded(ours) as own:
        uncached_logits(ours, [ids])
    with recorded(theirs) as other, torch.no_grad():
        theirs(torch.tensor([list(ids)]))
    agreed, between = "the token ids", []
    for event, tensors in own.items():
        what, path = event
        named = ours.checkpoint_name(f"{path}.x").removesuffix(".x") if path else path
        name = named
        for mine, hers in _THEIR_NAMES:
            name = name.replace(mine, hers)
        error = _error(tensors, other.get((what, name), []))
        if error is None:
            if what == "output of" and isinstance(ours.get_submodule(path), Op):
                between.append(path)
        elif error > TOLERANCE:
            ran = f"; between them ran {', '.join(between)}" if between else ""
            return f"first difference: {what} {named}, by {error:.1e} of its largest; {agreed} still agreed{ran}"
        else:
            agreed, between = f"{what} {named}", []
    return "no module differs"


def _stream(tensors: list[Tensor], module: nn.Module) -> list[Tensor]:
    """Ours pass the residual stream on as two summands, to the norm that adds them and from block to block."""
    summands = isinstance(module, blocks.BLOCKS | gpt2.Gpt2Block | AddNorm) and len(tensors) > 1
    return [tensors[0] + tensors[1]] if summands and tensors[0].shape == tensors[1].shape else tensors


def _tensors(values: Sequence[Any]) -> list[Tensor]:
    return [value.detach().clone() for value in values if isinstance(value, Tensor)]


def _error(ours: list[Tensor], theirs: list[Tensor]) -> float | None:
    """The largest difference over the largest entry of the tensors that both have; None if they cannot be compared."""
    worst = None
    for mine, hers in zip(ours, theirs, strict=False):
        errors = [
            float((mine.double().flatten() - said.double().flatten()).abs().max() / said.abs().max().clamp_min(1e-30))
            for said in _said(hers, mine)
            if said.numel() == mine.numel() and mine.is_floating_point()
        ]
        if errors:
            worst = max(worst or 0.0, min(errors))
    return worst


def _said(theirs: Tensor, ours: Tensor) -> list[Tensor]:
    """What transformers' tensor may say in our order: its heads may come before rows, and its cos and sin say
    everything twice, half by half or entry by entry."""
    if theirs.dim() == 4 and theirs.shape[1:] == ours.transpose(0, 1).shape:
        return [theirs.transpose(1, 2)]
    if theirs.numel() == 2 * ours.numel():
        return [theirs[..., : theirs.shape[-1] // 2], theirs[..., ::2]]
    return [theirs]
