"""The probe of the division of a transformers class: whether two ranks together give the logits of the whole class.

The sizes of a rank's matrices do not tell which rows of the checkpoint they are, nor whether the class's code computes
something from all heads. So a small random copy of the class runs as two ranks before the engine divides the class.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier

import torch
from torch import Tensor, nn

from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.from_transformers.class_construction import class_module, context_of
from ridgeline.core.models.from_transformers.class_decoder import ClassDecoder
from ridgeline.core.models.from_transformers.class_division import build_part, shapes_of
from ridgeline.core.models.from_transformers.class_lookup import FoundClass
from ridgeline.core.models.from_transformers.class_probe import TOLERANCE, reference_of, relative_difference
from ridgeline.core.models.from_transformers.not_bridged import summarise_error
from ridgeline.core.models.from_transformers.rank_part import RankPart
from ridgeline.core.models.from_transformers.rotary_lengths import fix_rotary
from ridgeline.core.models.from_transformers.small_config import small_config
from ridgeline.core.models.from_transformers.small_weights import copy_weights, fill_randomly
from ridgeline.core.ops.collective import AllGather, AllReduce
from ridgeline.core.ops.kv_context import Uncached
from ridgeline.core.ops.shard import Shard
from ridgeline.core.ops.work import StepSegment

_RANKS = 2
_ROWS = 19
_PATIENCE = 60.0  # seconds that a rank waits for one that has failed


class _Ranks:
    """The collectives of ranks that run in threads of one process."""

    def __init__(self) -> None:
        self._barrier = Barrier(_RANKS, timeout=_PATIENCE)
        self._given = [torch.empty(0)] * _RANKS

    def connect(self, model: ClassDecoder, rank: int) -> None:
        """Make the collectives of a rank's model join its results with those of the other ranks."""
        for _, op in model.ops():
            if isinstance(op, AllReduce | AllGather):
                join = _sum if isinstance(op, AllReduce) else _join_columns
                op.__dict__["forward"] = partial(self._joined, rank, join)

    def _joined(self, rank: int, join: Callable[[Sequence[Tensor]], Tensor], x_TD: Tensor) -> Tensor:
        """Return the joined results of all ranks, once each has given its own."""
        self._given[rank] = x_TD
        self._barrier.wait()
        result = join(self._given)
        self._barrier.wait()
        return result

    def run(self, model: ClassDecoder, ids_T: Tensor) -> Tensor:
        """Return the logits of a rank, for a single sequence."""
        rows_T = torch.arange(len(ids_T))
        try:
            with torch.inference_mode():
                return model(ids_T, rows_T, Uncached([StepSegment(len(ids_T), len(ids_T))]), rows_T)
        except Exception:
            self._barrier.abort()
            raise


def _sum(given: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(given)).sum(0)


def _join_columns(given: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(given), dim=-1)


def probe_division(found: FoundClass, *, latents: bool = True) -> str:
    """Return why the engine cannot divide a class over devices, as a clause about the class; "" if it can.

    Args:
        found: The class.
        latents: Whether the engine keeps latents where the class computes keys and values from them.
    """
    try:
        small = small_config(found.config)
        reference = reference_of(found.type, small)
        models = [_rank_of(found, small, Shard(rank, _RANKS), latents) for rank in range(_RANKS)]
        fill_randomly(reference)
        fix_rotary(reference, models[0].context)
        for model in models:
            copy_weights(model, reference)
        return _problem(models, reference)
    except Exception as error:  # a class may fail in any way
        return f"its weights cannot be divided ({summarise_error(error)})"


def _rank_of(found: FoundClass, small: object, shard: Shard, latents: bool) -> ClassDecoder:
    """Return a rank's part of the small copy of a class."""
    storage, context = StorageConfig(torch.float32, shard), context_of(found.config)

    def construct(config: object) -> nn.Module:
        module: nn.Module = class_module(found.type, config, torch.float32)
        return module

    def convert(module: object, part: RankPart) -> ClassDecoder:
        return ClassDecoder(module, storage, context, part, latents=latents)

    whole = partial(shapes_of, construct(small))
    return build_part(small, storage, construct, whole, convert).eval()


def _problem(models: Sequence[ClassDecoder], reference: Callable[..., object]) -> str:
    """Return what differs between the ranks' logits and the class's own, as a clause; "" if nothing does."""
    ids_T = torch.randint(3, models[0].vocabulary, (_ROWS,), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        right = reference(input_ids=ids_T[None], use_cache=False).logits[0].float()  # type: ignore[attr-defined]
    ranks = _Ranks()
    for rank, model in enumerate(models):
        ranks.connect(model, rank)
    with ThreadPoolExecutor(_RANKS) as threads:
        given = list(threads.map(lambda model: ranks.run(model, ids_T), models))
    off = max(relative_difference(logits, right) for logits in given)
    if off <= TOLERANCE:
        return ""
    return f"the logits of two ranks differ from the class's own by {off:.1g} of the largest"
