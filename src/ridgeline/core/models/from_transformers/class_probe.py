"""The probe of a transformers class: whether packed sequences, cut into chunks, give the class's own logits.

The engine packs the rows of several sequences into one pass and keeps keys and values itself. A class whose code looks
at its rows in another way than by attention (a state, a convolution, positions that it counts itself) would then give
wrong logits without an error. So a small random copy of the class runs both ways before the engine runs the class.
"""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.from_transformers.attention_bridge import SharedAttention
from ridgeline.core.models.from_transformers.cache_layers import kept_besides_kv
from ridgeline.core.models.from_transformers.class_construction import class_module, context_of
from ridgeline.core.models.from_transformers.class_decoder import ClassDecoder
from ridgeline.core.models.from_transformers.class_lookup import FoundClass
from ridgeline.core.models.from_transformers.not_bridged import summarise_error
from ridgeline.core.models.from_transformers.rotary_lengths import fix_rotary
from ridgeline.core.models.from_transformers.small_config import small_config
from ridgeline.core.models.from_transformers.small_weights import copy_weights, fill_randomly
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.latent_attention import LatentAttention
from ridgeline.core.ops.torch_attention import attend_segment

TOLERANCE = 1e-4
"""The largest difference of logits, as a share of the largest logit, that rounding in fp32 explains."""

_CONTEXT = 128
_LENGTHS = 23, 17
_SHORT = 4
# The rows of both sequences in each step: prompts in chunks, a chunk next to a decode step, then decode steps.
_STEPS = ((5, 3), (7, 0), (1, 9), (8, 1), *((1, 1),) * 2, *((0, 1),) * 2)
_LONGEST = "the logits of a sequence depend on the length of the longest one in the step"


class _KeptSequences:
    """A KV context that keeps what each layer stores of each sequence in one tensor, as the reference of paging."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self._kept: dict[tuple[int, int], tuple[Tensor, ...]] = {}

    def attend(self, op: Attention, q_THD: Tensor, k_TKD: Tensor, v_TKW: Tensor) -> Tensor:
        """Attend each sequence's rows to all of its keys so far."""
        results = [
            attend_segment(op, q, keys.transpose(0, 1), values.transpose(0, 1))
            for q, (keys, values) in self._each(op, q_THD, k_TKD, v_TKW)
        ]
        return torch.cat(results)

    def attend_latent(self, op: LatentAttention, q_THD: Tensor, kept_T1E: Tensor) -> Tensor:
        """Attend each sequence's rows to all of its latents so far; several rows expand them to keys and values."""
        results = [
            op.over_segment(q, latents.transpose(0, 1), 0, expanded=len(q) > 1)
            for q, (latents,) in self._each(op, q_THD, kept_T1E)
        ]
        return torch.cat(results)

    def _each(self, op: Attention, q_THD: Tensor, *new: Tensor) -> Iterator[tuple[Tensor, tuple[Tensor, ...]]]:
        """Store a step's rows, and yield the queries of each sequence in it with all that is stored of the sequence."""
        split = (torch.split(x, self.rows) for x in (q_THD, *new))
        for sequence, (q, *rows) in enumerate(zip(*split, strict=True)):
            if len(q):
                before = self._kept.get((op.layer, sequence), [x[:0] for x in rows])
                new_rows = 0 if isinstance(op, SharedAttention) else len(q)  # an earlier op has stored them
                kept = tuple(torch.cat([own, x[:new_rows]]) for own, x in zip(before, rows, strict=True))
                self._kept[op.layer, sequence] = kept
                yield q, kept


def probe(found: FoundClass, *, latents: bool = True) -> str:
    """Return why the engine cannot run a class, as a clause about the class; "" if it can.

    Args:
        found: The class.
        latents: Whether the engine is to keep latents where the class computes keys and values from them.
    """
    kept = kept_besides_kv(found.type, found.config)
    if kept:
        return kept
    try:
        small = small_config(found.config)
        context = min(_CONTEXT, context_of(small.get_text_config()))
        reference = reference_of(found.type, small)
    except Exception as error:  # a class may fail in any way
        return f"no small copy of it can be made to compare with ({summarise_error(error)})"
    try:
        with torch.device("meta"):
            module = class_module(found.type, small, torch.float32)
            model = ClassDecoder(module, StorageConfig(torch.float32), context, latents=latents).eval()
        fill_randomly(reference)
        fix_rotary(reference, context)
        copy_weights(model, reference)
        compared = _Comparison(model, reference, small.get_text_config().vocab_size)
        return compared.problem()
    except Exception as error:
        return f"its code fails on the rows of several sequences ({summarise_error(error)})"


def reference_of(cls: Any, config: Any) -> Any:
    """Return the model of a class that attends, and runs its experts, by its own code."""
    own = deepcopy(config)
    own._attn_implementation = own._experts_implementation = "eager"
    return cls._from_config(own, dtype=torch.float32).eval()


class _Comparison:
    """The logits of a small model of the engine next to those of the class's own code."""

    def __init__(self, model: ClassDecoder, reference: Any, vocabulary: int) -> None:
        self.model, self.reference = model, reference
        generator = torch.Generator().manual_seed(1)
        self.texts = [torch.randint(3, vocabulary, (length,), generator=generator) for length in _LENGTHS]

    @torch.inference_mode()
    def problem(self) -> str:
        """Return what differs, as a clause about the class; "" if nothing does."""
        wanted = [self.reference(input_ids=text[None], use_cache=False).logits[0].float() for text in self.texts]
        off = self._off_in_steps(wanted)
        if off > TOLERANCE:
            return self._explained(off, wanted[0])
        return _LONGEST if self._off_next_to_a_long_one() > TOLERANCE else ""

    def _off_in_steps(self, wanted: Sequence[Tensor]) -> float:
        """Return the largest difference of the logits of two sequences that run in chunks and decode steps."""
        context, starts, worst = _KeptSequences(), [0, 0], 0.0
        for rows in _STEPS:
            parts = [slice(start, start + count) for start, count in zip(starts, rows, strict=True)]
            ids_T = torch.cat([text[part] for text, part in zip(self.texts, parts, strict=True)])
            positions_T = torch.cat([torch.arange(part.start, part.stop) for part in parts])
            context.rows = list(rows)
            given = self.model(ids_T, positions_T, context, torch.arange(len(ids_T)))
            right = torch.cat([logits[part] for logits, part in zip(wanted, parts, strict=True)])
            worst = max(worst, relative_difference(given, right))
            starts = [part.stop for part in parts]
        return worst

    def _off_next_to_a_long_one(self) -> float:
        """Return how much the logits of a short text change if the step also has a row at the last position."""
        ids_T = self.texts[0][:_SHORT]
        positions_T = torch.arange(_SHORT)
        alone = self._in_one_step(ids_T, positions_T, [_SHORT])
        beside = (torch.cat([ids_T, ids_T[:1]]), torch.cat([positions_T, torch.tensor([self.model.context - 1])]))
        return relative_difference(self._in_one_step(*beside, [_SHORT, 1])[:-1], alone)

    def _explained(self, off: float, wanted: Tensor) -> str:
        """Return why logits differ, as far as runs of a single sequence tell."""
        text = self.texts[0]
        positions_T = torch.arange(len(text))
        alone = self._alone(positions_T)
        if relative_difference(alone, wanted) > TOLERANCE:
            if relative_difference(alone, self._with_positions(text, positions_T)) <= TOLERANCE:
                return "it numbers the positions of a text in another way than from 0"
            return f"the logits of a sequence differ from the class's own by {off:.1g} of the largest"
        if relative_difference(self._alone(positions_T.flip(0)), alone) <= TOLERANCE:
            return "it counts positions itself, so that only whole sequences have the right ones"
        if self._off_next_to_a_long_one() > TOLERANCE:
            return _LONGEST
        return f"the logits of packed sequences differ from the class's own by {off:.1g} of the largest"

    def _with_positions(self, text: Tensor, positions_T: Tensor) -> Tensor:
        """Return the class's logits for a text at given positions."""
        out: Tensor = self.reference(input_ids=text[None], position_ids=positions_T[None], use_cache=False).logits
        return out[0].float()

    def _alone(self, positions_T: Tensor) -> Tensor:
        """Return the logits of the first text as the only sequence of a step."""
        return self._in_one_step(self.texts[0], positions_T, [len(positions_T)])

    def _in_one_step(self, ids_T: Tensor, positions_T: Tensor, rows: list[int]) -> Tensor:
        context = _KeptSequences()
        context.rows = rows
        return self.model(ids_T, positions_T, context, torch.arange(len(ids_T)))


def relative_difference(given: Tensor, right: Tensor) -> float:
    """Return the largest difference of numbers, as a share of the largest right one; infinity if one is NaN."""
    return float(((given - right).abs().max() / right.abs().max()).nan_to_num(torch.inf))
