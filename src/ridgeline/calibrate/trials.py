"""The language models that are timed: small meaningless ones, shaped so that every kernel class meets several sizes.

Two live in the caches, as the built-in model does; in two each layer's weights are far apart, so that by the time a
layer comes again the caches have forgotten it. None has the shape of a model that a prediction is judged on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch

from ridgeline.calibrate.steps import PAGE, Sequences, Stage, Stopwatch, TrialStep
from ridgeline.checkpoint.fill import fill_dummy
from ridgeline.models import Fields, build
from ridgeline.models.model import Model
from ridgeline.models.recipes.recipe import PLAIN, uniform
from ridgeline.ops.formats import INT8, WeightFormat, weight_format_named


@dataclass(frozen=True, slots=True)
class Trial:
    """A language model to be timed, and the steps it is timed on. share: of the time that there is, relative to the
    others. stored: what the matrices of its blocks are stored in, None for the dtype."""

    dtypes: ClassVar[tuple[torch.dtype, ...]] = (torch.float32, torch.bfloat16)

    name: str
    config: dict[str, object]
    steps: tuple[Sequences, ...]
    share: float
    stored: WeightFormat | None = None

    def model(self, dtype: torch.dtype, device: torch.device) -> Model:
        """The model with random weights."""
        recipe = PLAIN if self.stored is None else uniform(self.stored)
        built = build(Fields(self.config, f"the trial {self.name}"), dtype, recipe=recipe)
        if device.type == "cpu":
            built.fuse()
        fill_dummy(built)
        return built.to(device)

    def prepared(self, model: Model, watch: Stopwatch) -> Iterator[TrialStep]:
        """The steps, to be run by a model that the watch times."""
        positions = max(sum(-(-kv // PAGE) * PAGE for _, kv in step) for step in self.steps)
        stage = Stage(model, positions, watch)
        for step in self.steps:
            yield TrialStep(describe(step), stage.work(step), partial(stage.run, step))


def describe(step: Sequences) -> str:
    """`4 x 1 of 100`: four sequences run the last position of 100."""
    q, kv = step[0]
    return f"{len(step)} x {q} of {kv}"


def decode(batch: int, context: int) -> Sequences:
    """A step in which every sequence runs one position."""
    return ((1, context),) * batch


def prefill(length: int, batch: int = 1, past: int = 0) -> Sequences:
    """A step in which every sequence runs `length` positions after `past` others."""
    return ((length, past + length),) * batch


def _config(architecture: str, model_type: str, sizes: Sequence[int], **more: object) -> dict[str, object]:
    hidden, layers, heads, kv_heads, head_dim, width, vocabulary = sizes
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": width,
        "vocab_size": vocabulary,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        **more,
    }


def _gpt2(hidden: int, layers: int) -> dict[str, object]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_embd": hidden,
        "n_layer": layers,
        "n_head": hidden // 64,
        "n_positions": 1024,
        "vocab_size": 2000,
        "torch_dtype": "float32",
    }


_LLAMA, _QWEN3, _EXPERTS = "LlamaForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM"
_MIXTURE = {"num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 192, "norm_topk_prob": True}
_FEW = (decode(1, 40), decode(1, 300), decode(4, 100), decode(16, 200), prefill(16), prefill(64), prefill(256))
_WIDE_MIXTURE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 1536, "norm_topk_prob": True}
# A format of each code that matrices run in, with groups as they are common.
_CODED = {
    "int8": INT8,
    "int4": weight_format_named("int4-g32"),
    "w8a8": weight_format_named("w8a8"),
    "fp8": WeightFormat("fp8 128x128", 8, (128, 128), 32, code="fp8"),
}

# Sizes: hidden, layers, heads, KV heads, head dim, width, vocabulary.
TRIALS = (
    Trial(
        "tiny",
        _config(_LLAMA, "llama", (96, 4, 8, 4, 8, 256, 800)),
        (*_FEW, prefill(1024), prefill(64, batch=4), prefill(16, batch=12)),
        12,
    ),
    Trial(
        "small",
        _config(_QWEN3, "qwen3", (320, 4, 8, 4, 32, 900, 3000)),
        (*_FEW, prefill(64, past=192), prefill(64, batch=4)),
        16,
    ),
    Trial(
        "long",
        _config(_LLAMA, "llama", (128, 2, 8, 4, 64, 344, 500)),
        (
            decode(1, 1024),
            decode(1, 4000),
            decode(16, 1024),
            decode(4, 64),
            prefill(512),
            prefill(1024),
            prefill(48, batch=6),
        ),
        12,
    ),
    Trial(
        "headed",
        _config(_LLAMA, "llama", (160, 2, 6, 2, 128, 420, 600)),
        (
            decode(1, 64),
            decode(1, 2000),
            decode(8, 500),
            prefill(32),
            prefill(128),
            prefill(512),
            prefill(1024),
            prefill(48, batch=6),
        ),
        12,
    ),
    Trial("gpt2", _gpt2(256, 4), (decode(1, 100), decode(8, 100), prefill(32), prefill(256)), 6),
    Trial("wide gpt2", _gpt2(768, 3), (decode(1, 100), decode(8, 100), prefill(64)), 6),
    Trial(
        "wide",
        _config(_LLAMA, "llama", (1280, 5, 12, 4, 128, 3456, 12000)),
        (decode(1, 100), decode(1, 1000), decode(4, 300), decode(16, 100), prefill(32), prefill(64), prefill(192)),
        28,
    ),
    *(
        Trial(
            f"wide {code}",
            _config(_LLAMA, "llama", (1280, 3, 12, 4, 128, 3456, 2000)),
            (decode(1, 100), decode(4, 100), decode(16, 100), prefill(32), prefill(128)),
            10,
            stored,
        )
        for code, stored in _CODED.items()
    ),
    Trial(
        "experts",
        _config(_EXPERTS, "qwen3_moe", (256, 2, 4, 2, 64, 512, 1000), **_MIXTURE),
        (decode(1, 50), decode(4, 50), decode(16, 50), prefill(64), prefill(256)),
        8,
    ),
    Trial(
        "wide experts",
        _config(_EXPERTS, "qwen3_moe", (1024, 3, 8, 4, 64, 512, 1000), **_WIDE_MIXTURE),
        (decode(1, 50), decode(2, 50), decode(8, 50), prefill(32), prefill(128)),
        12,
    ),
)
