"""The families that can be built, and the way from a config to one of them."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ridgeline.models import gemma2, gpt2, llama, mistral, phi3, qwen2, qwen3
from ridgeline.models.fields import DivisionRefused, Fields, ModelRefused
from ridgeline.models.model import Model
from ridgeline.models.storage import Storage
from ridgeline.models.unsupported import missing_for
from ridgeline.ops.formats import KVFormat, WeightFormat
from ridgeline.ops.linear import Linear
from ridgeline.ops.shard import WHOLE, Indivisible, Shard

Builder = Callable[[Fields, Storage], Model]


@dataclass(frozen=True, slots=True)
class Family:
    """A family: the architecture it is called in config.json, and how it is built and loaded.

    model_type: what a config without `architectures` says instead.
    trunk: the prefix that checkpoints of the bare model leave out.
    renames: patterns of what checkpoints call a part otherwise than its kin do, and what it is called here.
    ignored: patterns of tensors that old checkpoints carry and nothing reads.
    """

    architecture: str
    model_type: str
    build: Builder
    trunk: str = "model."
    renames: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = (r"(.*\.)?rotary_emb\.inv_freq",)


FAMILIES = (
    Family("LlamaForCausalLM", "llama", llama.build),
    Family("MistralForCausalLM", "mistral", mistral.build),
    Family("Qwen2ForCausalLM", "qwen2", qwen2.build),
    Family("Qwen3ForCausalLM", "qwen3", qwen3.build),
    Family("Phi3ForCausalLM", "phi3", phi3.build),
    Family("MixtralForCausalLM", "mixtral", mistral.build_mixture, renames=((r"\.block_sparse_moe\.", ".mlp."),)),
    Family("Qwen3MoeForCausalLM", "qwen3_moe", qwen3.build_mixture),
    Family("Gemma2ForCausalLM", "gemma2", gemma2.build),
    Family("GPT2LMHeadModel", "gpt2", gpt2.build, "transformer.", ignored=(r"(.*\.)?h\.\d+\.attn\.(masked_)?bias",)),
)


def family_of(fields: Fields) -> Family:
    """The family of a config. Raises ModelRefused naming what it is and what there is."""
    name = fields.architecture
    kind = str(fields.values.get("model_type", ""))
    for family in FAMILIES:
        if name == family.architecture or (not name and kind == family.model_type):
            return family
    called = name or kind
    if not called:
        raise fields.refuse("names no architecture and no model_type; is this the config.json of a language model?")
    missing = missing_for(called)
    if missing is not None:
        raise fields.refuse(f"architecture {missing}")
    raise fields.refuse(
        f"architecture {called} is not supported; supported are {', '.join(f.architecture for f in FAMILIES)}"
    )


def build(
    fields: Fields,
    dtype: torch.dtype | None = None,
    *,
    shard: Shard = WHOLE,
    weights: WeightFormat | None = None,
    kv: KVFormat | None = None,
) -> Model:
    """The model of a config on the meta device: shapes without memory, ready to be priced or filled.

    dtype: the number format of its weights, as the config says by default. shard: one rank of a tensor-parallel model.
    weights: a narrower format of the matrices in the blocks (embedding, head, router and norms are exempt, as
    quantisers leave them). kv: a narrower format of keys and values, priced only. Raises ModelRefused.
    """
    family = family_of(fields)
    if fields.has("quantization_config"):
        method = fields.section("quantization_config").values.get("quant_method", "?")
        raise fields.refuse(
            f"weights quantised by {method!r} are not supported; use the unquantised checkpoint "
            "(a plan prices such weights from its config with --weights fp8, int8 or int4)"
        )
    try:
        with torch.device("meta"):
            model = family.build(fields, Storage(dtype or fields.dtype, shard, kv)).eval()
            if weights is not None:
                model.store(lambda _, op: None if isinstance(op, Linear) and op.exempt else weights)
    except ModelRefused:
        raise
    except Indivisible as error:
        raise DivisionRefused(f"{fields.source}: {error}") from None
    except ValueError as error:  # what an op found when it divided itself
        raise fields.refuse(str(error)) from None
    fields.refuse_unread()
    return model
