"""The probe of a transformers class: whether packed sequences, cut into chunks, give the class's own logits.

The engine packs the rows of several sequences into one pass and keeps keys and values itself. A class whose code looks
at its rows in another way than by attention (a state, a convolution, positions that it counts itself) would then give
wrong logits without an error. So a small random copy of the class runs both ways before the engine runs the class.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.core.models.common.priced_module import PricedModule
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.from_transformers.cache_layers import kept_besides_kv
from ridgeline.core.models.from_transformers.class_construction import class_module, context_of
from ridgeline.core.models.from_transformers.class_decoder import ClassDecoder
from ridgeline.core.models.from_transformers.class_lookup import FoundClass
from ridgeline.core.models.from_transformers.not_bridged import summarise_error
from ridgeline.core.models.from_transformers.rotary_lengths import fix_rotary
from ridgeline.core.models.from_transformers.small_config import small_config
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.expert_layout import STACKED, UNGATED
from ridgeline.core.ops.experts import Experts
from ridgeline.core.ops.torch_attention import attend_segment

TOLERANCE = 1e-4
"""The largest difference of logits, as a share of the largest logit, that rounding in fp32 explains."""

_CONTEXT = 128
_LENGTHS = 23, 17
_SHORT = 4
# The rows of both sequences in each step: prompts in chunks, a chunk next to a decode step, then decode steps.
_STEPS = ((5, 3), (7, 0), (1, 9), (8, 1), *((1, 1),) * 2, *((0, 1),) * 2)
_LONGEST = "the logits of a sequence depend on the length of the longest one in the step"
_STD = 0.18  # large enough that every gate and norm moves the logits


class _KeptSequences:
    """A KV context that keeps the keys and values of each sequence in lists, as the reference of paging."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self._kept: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def attend(self, op: Attention, q_THD: Tensor, k_TKD: Tensor, v_TKW: Tensor) -> Tensor:
        """Attend each sequence's rows to all of its keys so far."""
        results = []
        each = (torch.split(x, self.rows) for x in (q_THD, k_TKD, v_TKW))
        for sequence, (q, k, v) in enumerate(zip(*each, strict=True)):
            if not len(q):
                continue
            before = self._kept.get((op.layer, sequence))
            keys, values = (k, v) if before is None else (torch.cat([before[0], k]), torch.cat([before[1], v]))
            self._kept[op.layer, sequence] = keys, values
            results.append(attend_segment(op, q, keys.transpose(0, 1), values.transpose(0, 1)))
        return torch.cat(results)


def probe(found: FoundClass) -> str:
    """Return why the engine cannot run a class, as a clause about the class; "" if it can."""
    kept = kept_besides_kv(found.type, found.config)
    if kept:
        return kept
    try:
        small = small_config(found.config)
        context = min(_CONTEXT, context_of(small.get_text_config()))
        reference = _reference(found.type, small)
    except Exception as error:  # a class may fail in any way
        return f"no small copy of it can be made to compare with ({summarise_error(error)})"
    try:
        with torch.device("meta"):
            module = class_module(found.type, small, torch.float32)
            model = ClassDecoder(module, StorageConfig(torch.float32), context).eval()
        fill_randomly(reference)
        fix_rotary(reference, context)
        copy_weights(model, reference)
        compared = _Comparison(model, reference, small.get_text_config().vocab_size)
        return compared.problem()
    except Exception as error:
        return f"its code fails on the rows of several sequences ({summarise_error(error)})"


def _reference(cls: Any, config: Any) -> Any:
    """Return the model of a class that attends, and runs its experts, by its own code."""
    config._attn_implementation = config._experts_implementation = "eager"
    return cls._from_config(config, dtype=torch.float32).eval()


def fill_randomly(model: Any) -> None:
    """Fill a model with random weights that all matter; scales of norms lie around 1."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *_stored_buffers(model)):
            noise = torch.randn(tensor.shape, generator=generator) * _STD
            tensor.copy_(1 + noise if tensor.dim() == 1 and not name.endswith("bias") else noise)
    model.tie_weights()


def _stored_buffers(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Return the buffers of a model that a checkpoint contains and that hold floats."""
    stored = model.state_dict()
    return [(name, held) for name, held in model.named_buffers() if name in stored and held.is_floating_point()]


def copy_weights(model: PricedModule, reference: nn.Module) -> None:
    """Give a model the weights of its class's own model, whose names it has."""
    weights = reference.state_dict()
    with torch.device("meta"):
        model.create_parameters()
    for path, op in model.ops_of(Experts):
        held = [name for name in (*STACKED.names, *UNGATED.names) if model.checkpoint_name(f"{path}.{name}") in weights]
        op.match_checkpoint(dict.fromkeys(held, "F32").get)
    for name, (module, own) in model.tensors().items():
        for path, tensor in module.load_tensor(own, weights[name]).items():
            owner, _, attribute = path.rpartition(".")
            setattr(module.get_submodule(owner), attribute, nn.Parameter(tensor, requires_grad=False))
    model.tie()


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
