"""Prices of classes whose code once stopped their trace, against counts where the class itself runs on the CPU.

The references are the class's parameters, PyTorch's formulas for the FLOPs of products, and the sizes of the results of
all other operations. The price comes from traces of other lengths.
"""

from functools import cache
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from typing_extensions import override

from ridgeline.core.models import Fields
from ridgeline.core.models.from_transformers.aten_table import flops_of
from ridgeline.core.models.from_transformers.class_priced import ClassPriced
from ridgeline.core.ops.latent_attention import LatentAttention
from ridgeline.core.ops.traced_work import TracedAttention
from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.price.price import Price
from support.priced_classes import eager_class, priced_class
from support.registered_classes import registered_fields

BF16 = torch.bfloat16
CHUNKS = {"bamba": "mamba_chunk_size", "granitemoehybrid": "mamba_chunk_size", "xlstm": "chunk_size"}
"""The fields with the chunks of recurrences, which are those of common kernels in the tests."""
EXPANDS = ("dots3_note_text",)
"""Types whose classes compute the keys of all positions from their latents in each decode step; a kernel does not."""
PROMPT = 256
"""The length of the prompt: whole chunks of all classes, and longer than any traced prompt and any window."""
STATES = (
    "bamba", "granitemoehybrid", "inkling2_loop_text", "inkling2_text", "inkling_text", "lara_mini", "lfm3",
    "recurrent_gemma", "xlstm", "zaya",
)  # fmt: skip
ATTEND = ("dots3_note_text", "megatron-bert", "rembert", "roformer")


class CountedFlops(TorchDispatchMode):
    """The FLOPs of all operations that run while the mode is active, by PyTorch's own formulas for products."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.products, self.total = 0.0, 0.0

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func.overloadpacket)
        if formula is not None:
            flops = float(formula(*args, **(kwargs or {}), out_val=out))
            self.products += flops * (args[0].dtype == BF16)
            self.total += flops
        elif not func.is_view and torch.is_tensor(out):
            self.total += sum(flops_of(func, args, kwargs or {}, out).values())
        return out


def fields_of(kind: str) -> Fields:
    """Return a small config of a type, with room for the prompt."""
    sizes = {CHUNKS[kind]: 64} if kind in CHUNKS else {}
    if kind in EXPANDS:
        sizes["index_topk"] = PROMPT  # the class computes the scores of all keys and hides those that are not chosen
    return registered_fields(kind, max_position_embeddings=512, **sizes)


@cache
def priced(kind: str) -> tuple[ClassPriced, Price]:
    """Return the small model of a type, and its price."""
    return priced_class(fields_of(kind))


@cache
def of_transformers(kind: str) -> Any:
    """Return the class's own model, with random weights."""
    torch.manual_seed(0)
    return eager_class(fields_of(kind))


@cache
def counted(kind: str) -> list[CountedFlops]:
    """Return the FLOPs of a prompt and of a decode step after it, of the class on the CPU."""
    model, kept, results = of_transformers(kind), dict[str, Any](), []
    for ids_1T in (3 + torch.arange(PROMPT)[None] % 80, torch.tensor([[5]])):
        with torch.no_grad(), CountedFlops() as counter:
            result = model(ids_1T, use_cache=True, **kept)
        kept = {name: own for name in ("cache",) if (own := getattr(result, name, None)) is not None}
        results.append(counter)
    return results


def masked_flops(model: ClassPriced, count: int) -> dict[str, float]:
    """Return the FLOPs of pairs of a query and a key that the class computes and then masks, which no price has."""
    flops = dict[str, float]()
    for _, op in model.not_modelled:
        if isinstance(op, TracedAttention) and op.attention_pattern.kind != "recurrent":
            pairs = count * count - StepSegment(count, count).pairs(op.attention_pattern)
            for name, each in op.pair.flops.items():
                flops[name] = flops.get(name, 0.0) + each * pairs
    for _, op in model.ops_of(LatentAttention):
        pairs = count * count - StepSegment(count, count).pairs(op.attention_pattern)
        flops["bf16"] = flops.get("bf16", 0.0) + 2.0 * op.heads * (op.sizes.key + op.sizes.value) * pairs
    return flops


@pytest.mark.parametrize("kind", [*STATES, *ATTEND])
def test_weights_are_those_that_the_class_stores(kind: str) -> None:
    """Check parameters and the buffers that a checkpoint contains; a tied tensor counts once."""
    stored = {each.data_ptr(): each.nbytes for each in of_transformers(kind).state_dict().values()}
    assert priced(kind)[1].weight_bytes == sum(stored.values())


@pytest.mark.parametrize("kind", [*STATES, *ATTEND])
def test_flops_of_a_prompt(kind: str) -> None:
    model, price = priced(kind)
    masked, (prompt, _) = masked_flops(model, PROMPT), counted(kind)
    cost = price.step(Work.of([StepSegment(PROMPT, PROMPT)], price.reaches, PROMPT))
    assert cost.flops["bf16"] + masked.get("bf16", 0.0) == pytest.approx(prompt.products, rel=0.01)
    if kind not in EXPANDS:  # our op for latents counts no FLOPs of its softmax
        assert cost.total_flops + sum(masked.values()) == pytest.approx(prompt.total, rel=0.03)


@pytest.mark.parametrize("kind", [kind for kind in (*STATES, *ATTEND) if kind not in EXPANDS])
def test_products_of_a_decode_step(kind: str) -> None:
    _, price = priced(kind)
    step = price.step(Work.decode([PROMPT + 1], price.reaches))
    assert step.flops["bf16"] == pytest.approx(counted(kind)[1].products, rel=0.03)


@pytest.mark.parametrize("kind", [*STATES, *ATTEND])
def test_every_figure_is_at_least_zero(kind: str) -> None:
    """Check steps between the traced ones."""
    _, price = priced(kind)
    for segments in ([StepSegment(count, kept + count)] for count in (1, 65, 130) for kept in (0, 50)):
        cost = price.step(Work.of(segments, price.reaches))
        assert min(cost.total_flops, cost.activation_bytes, cost.weight_bytes, *cost.flops.values()) > 0
