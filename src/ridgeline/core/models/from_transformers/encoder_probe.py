"""The probe of an encoder's class: the way in which the engine runs it, and whether that gives the class's own states.

A class whose attention calls the interface of transformers runs all texts of a step as one sequence, unless its code
looks at rows in another way (a convolution, a Fourier transform, positions that it numbers itself). A small random copy
of the class shows which way gives, for each of several texts, what the class gives for the text alone.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.from_transformers.class_encoder import (
    ClassEncoder,
    EncoderRun,
    encoder_module,
    encoder_of,
    first_position,
)
from ridgeline.core.models.from_transformers.class_lookup import FoundClass, is_classifier
from ridgeline.core.models.from_transformers.class_probe import TOLERANCE, relative_difference
from ridgeline.core.models.from_transformers.not_bridged import summarise_error
from ridgeline.core.models.from_transformers.small_config import small_config
from ridgeline.core.models.from_transformers.small_layers import keep_layers
from ridgeline.core.models.from_transformers.small_weights import copy_weights, fill_randomly
from ridgeline.core.ops.kv_context import Uncached
from ridgeline.core.ops.work import StepSegment

_MOST_POSITIONS = 4096
_LENGTHS = 9, 61, 23, 9, 2  # two of one length; one that is longer than any window or block of a small copy
_UNKNOWN = EncoderRun(packed=False)
OTHER_INPUTS = {
    "funnel": "its tokenizer gives the first token a type of its own, which the engine does not give it",
    "mra": "its attention needs CUDA kernels that transformers compiles, and is zero without them",
    "perceiver": "it reads the results of a preprocessor, not token ids",
    "reformer": "its attention hashes keys by random numbers",
    "tapas": "it reads the rows and columns of a table with each token",
    "xmod": "it reads the language of each text, which the engine does not give it",
}
"""The needs of some classes besides the ids of a text's tokens, as clauses about the class, by model type."""


@dataclass(frozen=True, slots=True)
class EncoderProbe:
    """The findings of the probe of an encoder's class."""

    run: EncoderRun
    """The way to run the texts of a step."""
    problem: str = ""
    """The reason why the engine cannot run the class of an encoder, as a clause about it; "" if it can."""


def probe_encoder(found: FoundClass) -> EncoderProbe:
    """Return how the engine runs the class of an encoder, or why it cannot."""
    with torch.device("cpu"):  # a model is built in the context of another device
        try:
            reference = _reference(found)
        except Exception as error:  # a class may fail in any way
            return EncoderProbe(_UNKNOWN, f"no small copy of it can be made to compare with ({summarise_error(error)})")
        try:
            return _probed(found.type, reference)
        except Exception as error:
            return EncoderProbe(_UNKNOWN, f"its code fails on texts of several lengths ({summarise_error(error)})")


def _reference(found: FoundClass) -> Any:
    """Return a small copy of an encoder's class that attends by its own code, with random weights.

    If the class cannot be made with small widths, its copy has the widths of the config and few layers.
    """
    try:
        reference = encoder_of(found.type, small_config(found.config), torch.float32, "eager")
        fill_randomly(reference)
        _states(deepcopy(reference), [torch.zeros(2, dtype=torch.int64)])
    except (ValueError, RuntimeError, AssertionError, TypeError, IndexError, AttributeError):
        few = type(found.config).from_dict(keep_layers(found.config.to_dict()))
        reference = encoder_of(found.type, few, torch.float32, "eager")
        fill_randomly(reference)
    return reference


def _probed(cls: Any, reference: Any) -> EncoderProbe:
    """Return how the engine runs a class, by its small copy."""
    texts = _texts(reference.config)
    after_padding = _begins_after_padding(reference)
    by_length = EncoderRun(packed=False, after_padding=after_padding)
    wanted, again = (_states_in_order(reference, texts, longest_first=first) for first in (False, True))
    if _apart(again, wanted) > TOLERANCE:
        return EncoderProbe(by_length, "its own states of a text change with the texts before, or by random numbers")
    packed = EncoderRun(packed=True, after_padding=after_padding)
    try:
        if not is_classifier(cls) and _apart(_results(_copy(cls, reference, packed), texts), wanted) <= TOLERANCE:
            return EncoderProbe(packed)
    except Exception:  # a class that cannot run packed may fail in any way
        pass
    off = _apart(_results(_copy(cls, reference, by_length), texts), wanted)
    problem = "" if off <= TOLERANCE else f"its states differ from the class's own by {off:.1g} of the largest"
    return EncoderProbe(by_length, problem)


def _begins_after_padding(reference: Any) -> bool:
    """Return whether the last positions of a class are out of reach, because its first are not for texts."""
    positions = getattr(reference.config, "max_position_embeddings", None)
    if not positions or positions > _MOST_POSITIONS:
        return False
    ordinary, reference = _token_ids(reference.config)[0], deepcopy(reference)
    try:
        _states(reference, [torch.full((positions,), ordinary)])
    except (IndexError, RuntimeError):
        _states(reference, [torch.full((positions - first_position(reference.config),), ordinary)])
        return True
    return False


def _copy(cls: Any, reference: Any, run: EncoderRun) -> ClassEncoder:
    """Return an engine model with the weights of a small copy."""
    with torch.device("meta"):
        module = encoder_module(cls, reference.config, torch.float32, packed=run.packed)
        model = ClassEncoder(module, StorageConfig(torch.float32), run).eval()
    copy_weights(model, reference)
    return model


def _token_ids(config: Any) -> list[int]:
    """Return the ids of a config's vocabulary without its padding and the first few, which are often special."""
    return [token for token in range(3, config.vocab_size) if token != config.pad_token_id]


def _texts(config: Any) -> list[Tensor]:
    """Return texts of several lengths; one has the special tokens of a config, which some classes treat apart."""
    generator = torch.Generator().manual_seed(1)
    ids_V = torch.tensor(_token_ids(config))
    most = (getattr(config, "max_position_embeddings", None) or max(_LENGTHS)) - first_position(config)
    lengths = [max(2, min(length, most)) for length in _LENGTHS]
    texts = [ids_V[torch.randint(len(ids_V), (length,), generator=generator)] for length in lengths]
    special = {
        value
        for name, value in vars(config).items()
        if name.endswith("_token_id") and isinstance(value, int) and 0 <= value < config.vocab_size
    }
    special -= {config.pad_token_id}
    chosen = torch.tensor(sorted(special)[: len(texts[1])], dtype=torch.int64)
    texts[1][: len(chosen)] = chosen
    return texts


@torch.inference_mode()
def _states(reference: Any, texts: Sequence[Tensor]) -> list[Tensor]:
    """Return a class's own states of texts, or a classifier's scores, one text at a time."""
    return [reference(input_ids=text[None])[0][0] for text in texts]


def _states_in_order(reference: Any, texts: Sequence[Tensor], *, longest_first: bool) -> list[Tensor]:
    """Return a new class's own states of texts that it reads in the order of their lengths."""
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]), reverse=longest_first)
    states = dict(zip(order, _states(deepcopy(reference), [texts[index] for index in order]), strict=True))
    return [states[index] for index in range(len(texts))]


@torch.inference_mode()
def _results(model: ClassEncoder, texts: Sequence[Tensor]) -> list[Tensor]:
    """Return the states of texts that run in one step, or their scores."""
    lengths = [len(text) for text in texts]
    positions_T = torch.cat([torch.arange(length) for length in lengths])
    kv = Uncached([StepSegment(length, length) for length in lengths])
    rows_R = torch.tensor(lengths).cumsum(0) - 1 if model.pooled else torch.arange(len(positions_T))
    x_RD = model.hidden(torch.cat(list(texts)), positions_T, kv, rows_R)
    return list(x_RD) if model.pooled else list(torch.split(x_RD, lengths))


def _apart(given: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """Return the largest difference of the states of texts, as a share of the largest state."""
    return relative_difference(torch.cat(list(given)), torch.cat(list(wanted)))
