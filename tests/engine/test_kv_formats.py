"""Keys and values in fewer bits: what an engine says with them, whatever runs beside a request, and what they take."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.small_models import LATENT, LLAMA, MIXED, SLIDING, greedy, poison_free_pages, small_model
from ridgeline.backends import backend_of
from ridgeline.backends.cpu.library import library
from ridgeline.backends.model_loader import load_model
from ridgeline.core.checkpoint import open_source
from ridgeline.core.checkpoint.weight_loader import load_weights
from ridgeline.core.models import Fields, ModelRefused, build_to_run
from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.kv_context import Uncached
from ridgeline.core.ops.kv_layout import KVSpec, group_layers
from ridgeline.core.ops.latent_attention import LatentAttention
from ridgeline.core.ops.work import StepSegment
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.kv.store import KVStore
from ridgeline.engine.llm import LLM
from ridgeline.engine.scheduler import Limits
from support.checkpoints import random_tensors, write_folder
from support.engines import GREEDY, RecordingRunner, complete, token_engine

PROMPTS = [[7 * p % 40 + 1 for p in range(28)], [3, 1, 4], [7 * p % 40 + 1 for p in range(20)], [9] * 9]
SCALES = 0.25, 0.5  # as a checkpoint states them, of keys and of values


def read_back(x_THD: Tensor, kv: str, scale: float = 1.0) -> Tensor:
    """What is kept of keys or values, by arithmetic on whole tensors."""
    if kv == "fp8":
        return (x_THD / scale).to(torch.float8_e4m3fn).float() * scale
    step_TH1 = (x_THD.abs().amax(-1, keepdim=True) / 127).bfloat16().float()
    return (x_THD / step_TH1).round() * step_TH1


class Narrowed(Uncached):
    """A context that keeps nothing, and gives attention what would be read back."""

    kv, scales = "", (1.0, 1.0)

    def attend(self, op: Attention, q_THD: Tensor, k_NKD: Tensor | None, v_NKW: Tensor | None) -> Tensor:
        assert k_NKD is not None
        assert v_NKW is not None
        k_scale, v_scale = self.scales
        return super().attend(op, q_THD, read_back(k_NKD, self.kv, k_scale), read_back(v_NKW, self.kv, v_scale))

    def attend_latent(self, op: LatentAttention, q_THD: Tensor, kept_T1E: Tensor) -> Tensor:
        return super().attend_latent(op, q_THD, read_back(kept_T1E, self.kv))


def narrowed_tokens(
    model: Model, prompt: Sequence[int], kv: str, scales: tuple[float, float] = (1.0, 1.0)
) -> list[int]:
    """What it says greedily by a whole forward a token, none of which is a near thing."""

    def logits_of(tokens: Sequence[int]) -> Tensor:
        context = Narrowed([StepSegment(len(tokens), len(tokens))])
        context.kv, context.scales = kv, scales
        every_T = torch.arange(len(tokens))
        with torch.inference_mode():
            return model(torch.tensor(tokens), every_T, context, every_T)

    answer = greedy(logits_of, prompt, GREEDY.max_tokens or 0)
    assert answer.smallest_gap > 1e-4
    return answer.tokens


@pytest.mark.parametrize("kv", ["int8", "fp8"])
@pytest.mark.parametrize("config", [LLAMA, MIXED, LATENT], ids=["full", "mixed", "latent"])
def test_tokens_are_those_of_a_loop_that_narrows_by_itself(config: dict[str, Any], kv: str) -> None:
    """Alone and in a batch, with prompts in chunks, prefixes found, and requests that give way and come again."""
    model = small_model(config, kv=kv)
    wanted = [narrowed_tokens(model, prompt, kv) for prompt in PROMPTS]
    for more in ({}, {"limits": Limits(chunk=5)}, {"prefix_cache": True, "limits": Limits(requests=2)}):
        engine = token_engine(model, **more)  # type: ignore[arg-type]
        poison_free_pages(engine)
        assert complete(engine, PROMPTS) == wanted
        assert complete(engine, PROMPTS[::-1]) == wanted[::-1]
    tight = token_engine(model, positions=80, prefix_cache=True)
    assert complete(tight, PROMPTS) == wanted
    assert tight.stats.preemptions > 0


@pytest.mark.skipif(library() is None, reason="torch's products depend on how many rows there are")
@pytest.mark.parametrize("kv", ["int8", "fp8"])
@pytest.mark.parametrize("config", [LLAMA, SLIDING], ids=["full", "window"])
def test_a_row_is_the_same_however_it_is_run(config: dict[str, Any], kv: str) -> None:
    """Logits of every position, bit for bit: prompts whole and in chunks, alone and in a batch, after prefixes that
    were found and after a preemption."""
    model = small_model(config, kv=kv)
    backend_of(torch.device("cpu")).bind(model)
    alone = token_engine(model, runner=RecordingRunner)
    complete(alone, PROMPTS[:1])
    wanted = {place: row for (_, place), row in alone.executor.logits.items()}  # type: ignore[attr-defined]
    ways = ({}, {"limits": Limits(chunk=5)}, {"prefix_cache": True}, {"positions": 80})
    for more in ways:
        engine = token_engine(model, runner=RecordingRunner, **more)  # type: ignore[arg-type]
        complete(engine, PROMPTS)
        complete(engine, PROMPTS[:1])
        logits = engine.executor.logits.items()  # type: ignore[attr-defined]
        ids = [request for (request, _), _ in logits]
        for asked in (min(ids), max(ids)):
            rows = {place: row for (request, place), row in logits if request == asked}
            assert len(rows) >= 15  # what was generated, if all of the prompt was found
            assert all(torch.equal(row, wanted[place]) for place, row in rows.items()), more


@pytest.mark.parametrize("kv", ["int8", "fp8"])
@pytest.mark.parametrize("config", [LLAMA, MIXED, LATENT], ids=["full", "mixed", "latent"])
def test_what_they_take_is_what_is_priced(config: dict[str, Any], kv: str) -> None:
    model = small_model(config, kv=kv)
    layout = replace(group_layers(model.kv_specs, 4, 100), pages=3)
    store = KVStore(layout)
    for group in layout.groups:
        taken = sum(part.nbytes for layer in group.layers for part in store.layers[layer].parts)
        assert taken == group.used_bytes == len(group.layers) * group.page_size * group.spec.slot_bytes
    spec = model.kv_specs[0]
    assert isinstance(spec, KVSpec)
    vectors = 1 if config is LATENT else 2 * spec.heads
    assert spec.slot_bytes == spec.heads * (spec.k_dim + spec.v_dim) + (2 * vectors if kv == "int8" else 0)


# -- how they are asked for --------------------------------------------------------------------------------------------

STATED: dict[str, dict[str, Any]] = {
    "quantization_config": {"quant_method": "modelopt", "quant_algo": None, "kv_cache_quant_algo": "FP8"}
}


_MATRICES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
AUTOFP8: dict[str, dict[str, Any]] = {
    "quantization_config": {
        "quant_method": "fp8", "activation_scheme": "static", "ignored_layers": _MATRICES, "kv_cache_scheme": "static",
    }
}  # fmt: skip
BESIDE = {"k_scale": SCALES[0], "v_scale": SCALES[1]}
# What a config says and the scales of a layer, by their names beside the attention.
FORMS: dict[str, tuple[dict[str, Any], dict[str, float]]] = {
    "beside": (STATED, BESIDE),
    "projections": (STATED, {"k_proj.k_scale": SCALES[0], "v_proj.v_scale": SCALES[1]}),
    "fp8": (AUTOFP8, BESIDE),
    "outputs": (AUTOFP8, {"k_proj.output_scale": SCALES[0], "v_proj.output_scale": SCALES[1]}),
    "one": (AUTOFP8, {"kv_scale": SCALES[0]}),
}


def stated_folder(folder: Path, form: str) -> Path:
    """A checkpoint with scales of each layer's keys and values."""
    said, scales = FORMS[form]
    tensors = random_tensors(LLAMA)
    for layer in range(2):
        tensors |= {f"model.layers.{layer}.self_attn.{name}": torch.tensor(scale) for name, scale in scales.items()}
    folder.mkdir()
    return write_folder(folder, LLAMA | said, tensors)


@pytest.mark.parametrize("form", FORMS)
def test_a_checkpoints_scales_are_read(form: str, tmp_path: Path) -> None:
    """Under each of their names, also one for both; and passed over where keys and values are kept otherwise."""
    folder = str(stated_folder(tmp_path / "a", form))
    model = load_model(folder)
    scales = (SCALES[0], SCALES[0]) if form == "one" else SCALES
    wanted = [narrowed_tokens(model, prompt, "fp8", scales) for prompt in PROMPTS]
    assert complete(token_engine(model), PROMPTS) == wanted
    source = open_source(folder)
    plain = build_to_run(source.config, kv="fp32")
    assert plain.kv_specs[0].slot_bytes == 4 * model.kv_specs[0].slot_bytes
    load_weights(plain, source)


def test_scales_that_are_stated_and_not_there_are_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, LLAMA | AUTOFP8, random_tensors(LLAMA))
    with pytest.raises(ModelRefused, match=r"lacks tensors of the model: .*k_scale"):
        load_model(str(folder))
    load_model(str(folder), kv="fp8")


def test_pages_are_smaller(tmp_path: Path) -> None:
    """A budget in bytes holds more positions, and it is said."""
    folder, settings = str(write_folder(tmp_path, LLAMA)), EngineSettings(kv_bytes=1 << 14)
    own, narrow = (LLM(folder, settings, kv=kv, dummy_weights=True, threads=1) for kv in (None, "int8"))
    assert (own.loaded.layout.tokens, narrow.loaded.layout.tokens) == (64, 192)
    assert "KV cache: 192 tokens in int8" in repr(narrow)
    assert "int8" in narrow.loaded.layout.describe(100)


def test_what_is_refused() -> None:
    """In one line, with what works."""
    fields = Fields(LLAMA, "c")
    with pytest.raises(
        ValueError,
        match=r"^--kv is 'nvfp4', which can only be priced .* c can store keys and values in fp32, fp8, int8$",
    ):
        build_to_run(fields, kv="nvfp4")
    cached = "/hub/models--Qwen--Qwen3-8B/snapshots/a1b2/config.json"
    named = {"/m/Qwen3-8B/config.json": "Qwen3-8B", cached: "Qwen/Qwen3-8B", "/m/small-Q4_0.gguf": "small-Q4_0"}
    for path, name in named.items():
        with pytest.raises(ValueError, match=rf"^--kv is 'fp16'; {name} can store keys and values in fp32, fp8, int8$"):
            build_to_run(Fields(LLAMA, path), kv="fp16")
    int8 = STATED["quantization_config"] | {"kv_cache_quant_algo": "INT8"}
    with pytest.raises(
        ModelRefused, match=r"in int8 with the checkpoint's scales cannot run yet, only be priced .*; give --kv fp8 or"
    ):
        build_to_run(Fields(LLAMA | {"quantization_config": int8}, "c"))
    with pytest.raises(ModelRefused, match="fp8 scales for latents are not supported; give --kv fp8"):
        build_to_run(Fields(LATENT | STATED, "c"))
    assert build_to_run(Fields(LATENT | STATED, "c"), kv="fp8").runs
