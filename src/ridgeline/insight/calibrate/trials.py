"""The language models that calibration times: small random ones whose shapes cover several sizes of each kernel class.

Some fit in the caches, as the built-in model does. In the wide ones, each layer's weights are so large that the caches
have evicted them before the layer runs again. None has the shape of a model on which predictions are evaluated.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch

from ridgeline.backends.model_loader import prepare_on
from ridgeline.core.checkpoint.weight_loader import fill_dummy
from ridgeline.core.models import Fields, build
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.recipes.recipe import LINEAR, PLAIN, Recipe, stored_in
from ridgeline.core.ops.number_formats import INT8, WeightFormat, kv_format_named, weight_format_named
from ridgeline.insight.calibrate.steps import PAGE, Sequences, Stopwatch, TrialRunner, TrialStep


@dataclass(frozen=True, slots=True)
class Trial:
    """A language model to time, with the steps on which it is timed."""

    dtypes: ClassVar[tuple[torch.dtype, ...]] = (torch.float32, torch.bfloat16)

    name: str
    config: dict[str, object]
    steps: tuple[Sequences, ...]
    share: float
    """The share of the time budget relative to other trials."""
    stored: WeightFormat | None = None
    """The storage format of the trial model's matrices, embedding and head included; None for its dtype."""
    kv: str | None = None
    """The storage format of the trial model's KV cache; None for its dtype."""

    def model(self, dtype: torch.dtype, device: torch.device) -> Model:
        """Return the model with random weights on a device."""
        built = build(Fields(self.config, f"the trial {self.name}"), dtype, recipe=self.recipe)
        fill_dummy(built, device=device)
        prepare_on(built, device)
        return built

    @property
    def recipe(self) -> Recipe:
        """The quantization recipe with the storage formats of the trial's weights and KV cache."""
        kv, stored = None if self.kv is None else kv_format_named(self.kv), self.stored
        if stored is None:
            return replace(PLAIN, kv=kv)
        return Recipe(stored.name, stored.bits, lambda _: stored_in(stored, LINEAR | {"embedding"}), kv)

    @property
    def positions(self) -> int:
        """The KV-cache positions that the largest step needs, each sequence rounded up to whole pages."""
        return max(sum(-(-kv // PAGE) * PAGE for _, kv in step) for step in self.steps)

    def prepared(self, model: Model, watch: Stopwatch) -> Iterator[TrialStep]:
        """Yield the trial's steps, ready to run on the model whose ops the stopwatch times."""
        stage = TrialRunner(model, self.positions, watch)
        for step in self.steps:
            yield TrialStep(describe(step), stage.work(step), partial(stage.run, step))


def describe(step: Sequences) -> str:
    """Return a step's description, such as `4 x 1 of 100`: four sequences run the last position of 100."""
    q, kv = step[0]
    return f"{len(step)} x {q} of {kv}"


def decode(batch: int, context: int) -> Sequences:
    """Return a step in which every sequence runs one position."""
    return ((1, context),) * batch


def prefill(length: int, batch: int = 1, past: int = 0) -> Sequences:
    """Return a step in which every sequence runs `length` positions after `past` others."""
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
_FEW = (
    *(decode(1, 40), decode(1, 300), decode(2, 150), decode(4, 100), decode(7, 80), decode(16, 200)),
    *(prefill(16), prefill(24), prefill(64), prefill(256)),
)
_WIDE_MIXTURE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 1536, "norm_topk_prob": True}
# One format for each kind of quantized matrix, with common group sizes.
_CODED = {
    "int8": INT8,
    "int4": weight_format_named("int4-g32"),
    "w8a8": weight_format_named("w8a8"),
    "fp8": WeightFormat("fp8 128x128", 8, (128, 128), 32, code="fp8"),
}

# Sizes: hidden, layers, heads, KV heads, head dim, width, vocabulary.
_TINY = _config(_LLAMA, "llama", (96, 4, 8, 4, 8, 256, 800))
_SMALL = _config(_QWEN3, "qwen3", (320, 4, 8, 4, 32, 912, 3008))
_SHORT = _config(_LLAMA, "llama", (128, 2, 8, 4, 32, 344, 500))
_LONG = _config(_LLAMA, "llama", (128, 2, 8, 4, 64, 344, 500))
_LONG_STEPS = (decode(1, 1024), decode(1, 4000), decode(16, 1024), prefill(512))
_HEADED = _config(_LLAMA, "llama", (160, 2, 6, 2, 128, 420, 600))
_CODED_STEPS = (decode(1, 100), decode(4, 100), decode(16, 100), prefill(32), prefill(256))
_HEADED_STEPS = (decode(1, 64), decode(1, 2000), decode(8, 500), prefill(128), prefill(512))

TRIALS = (
    Trial("tiny", _TINY, (*_FEW, prefill(1024), prefill(64, batch=4), prefill(16, batch=12)), 12),
    Trial("small", _SMALL, (*_FEW, prefill(64, past=192), prefill(64, batch=4)), 16),
    Trial("long", _LONG, (*_LONG_STEPS, decode(4, 64), prefill(1024), prefill(48, batch=6)), 12),
    Trial("headed", _HEADED, (*_HEADED_STEPS, prefill(32), prefill(1024), prefill(48, batch=6)), 12),
    *(
        Trial(f"{name} KV {kv}", config, steps, 4, kv=kv)
        for kv in ("int8", "fp8")
        for name, config, steps in (
            ("short", _SHORT, (decode(1, 40), decode(1, 300), decode(16, 200), prefill(64), prefill(256))),
            ("long", _LONG, _LONG_STEPS),
            ("headed", _HEADED, _HEADED_STEPS),
        )
    ),
    Trial("gpt2", _gpt2(256, 4), (decode(1, 100), decode(8, 100), prefill(32), prefill(256)), 6),
    Trial("wide gpt2", _gpt2(768, 3), (decode(1, 100), decode(8, 100), prefill(64)), 6),
    Trial(
        "wide",
        _config(_LLAMA, "llama", (1280, 5, 12, 4, 128, 3456, 12000)),
        (
            *(decode(1, 100), decode(1, 1000), decode(2, 200), decode(4, 300), decode(16, 100)),
            *(prefill(32), prefill(64), prefill(192)),
        ),
        28,
    ),
    *(
        Trial(f"{name} {code}", config, steps, share, stored)
        for code, stored in _CODED.items()
        for name, config, steps, share in (
            ("tiny", _TINY, _CODED_STEPS, 2),
            ("small", _SMALL, _CODED_STEPS, 3),
            ("wide", _config(_LLAMA, "llama", (1280, 3, 12, 4, 128, 3456, 6000)), _CODED_STEPS, 8),
        )
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

_GPU_DECODES = (decode(1, 128), decode(1, 4000), decode(4, 1000), decode(16, 500), decode(64, 800), decode(200, 400))
_GPU_STEPS = (*_GPU_DECODES, decode(32, 1500), prefill(96), prefill(384), prefill(1536), prefill(256, batch=4))
_LATER = prefill(800, past=2000)
GPU_TRIALS = (
    Trial("narrow", _config(_QWEN3, "qwen3", (1536, 4, 12, 4, 128, 4608, 30000)), (*_GPU_STEPS, prefill(6000)), 10),
    Trial("middle", _config(_LLAMA, "llama", (3072, 3, 24, 8, 128, 9216, 50000)), (*_GPU_STEPS, prefill(3000)), 12),
    Trial(
        "broad",
        _config(_LLAMA, "llama", (5120, 2, 40, 8, 128, 17408, 90000)),
        (*_GPU_STEPS, _LATER),
        14,
    ),
)
"""The trials of a GPU, in bf16: a few layers, wide enough that every kernel fills the GPU.

None has the shape of a model on which predictions are evaluated.
"""

HOST_TRIALS = (
    *GPU_TRIALS[:2],
    Trial("deep", _config(_QWEN3, "qwen3", (768, 20, 8, 4, 128, 2304, 30000)), _GPU_STEPS, 0),
)
"""The trials that measure the host time of a GPU's engine.

They have few and many layers, so that the time per step can be separated from the time per op.
"""
