"""What is said of KV memory: how many requests it holds, beside what its ledger admits, and what a request takes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.folders import write_model
from engine.small_models import DELTA, LATENT, LLAMA, MAMBA, MIXED, SLIDING, small_model
from models.configs import ENCODER_DECODERS
from ridgeline.engine.async_llm import AsyncLLM
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.kv.kv_cache_manager import KVCacheManager
from ridgeline.engine.kv.page_count import kv_layout
from ridgeline.engine.llm import LLM
from ridgeline.engine.setup import load_engine
from ridgeline.price.devices import load_device
from ridgeline.price.error_interval import error_intervals
from support.embedders import write_bert

CONFIGS = {
    "full": LLAMA, "windows": SLIDING, "mixed": MIXED, "latents": LATENT, "delta": DELTA, "mamba": MAMBA,
    "encoder-decoder": ENCODER_DECODERS["t5"],
}  # fmt: skip


@pytest.mark.parametrize("positions", [1, 37, 200])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_the_concurrency_is_what_the_ledger_takes(config: Mapping[str, Any], positions: int) -> None:
    """Requests of so many positions, a step of one each, until the next one has no room."""
    model = small_model(config)
    encoded = 9 if model.has_cross_attention else 0
    layout = kv_layout(model, 1e6, 4)
    ledger = KVCacheManager(layout, 1, prefix_cache=False)
    held = 0
    while ledger.admit(held, range(positions), ledger.claimed, encoded=encoded) is not None:
        held += 1
    assert held == int(layout.concurrency(positions, encoded)) > 0


def test_states_are_of_a_request_and_not_of_tokens(tmp_path: Path) -> None:
    """Mamba-2: two layers of 4 states of 7 x 5 and of 2 rows of 48 channels; keys and values of one layer. An engine is
    shown with that too."""
    llm = LLM(str(write_model(tmp_path, config=MAMBA)))
    info = llm.loaded.info()
    state = 2 * 4 * (4 * 7 * 5 + 2 * 48)
    assert info.held == f"{2 * 2 * 8 * 4} bytes a token, and a state of {state:,} bytes a request of any length"
    assert f"KV cache: {info.held}, threads" in repr(llm)
    assert info.unshared == "layers keep a recurrent state, which is not stored for earlier positions"


def test_tokens_where_all_that_is_kept_is_of_tokens(tmp_path: Path) -> None:
    settings = EngineSettings(kv_bytes=2 * 2 * 2 * 8 * 4 * 16 * 30, context=100)
    info = load_engine(str(write_model(tmp_path, config=LLAMA)), settings).info()
    assert (info.held, info.unshared) == ("480 tokens", "")
    assert info.concurrency == 30 / 7


def test_the_dtype_is_the_models_where_weights_are_codes(tmp_path: Path) -> None:
    folder = str(write_model(tmp_path, config=LLAMA))
    loaded = load_engine(folder, EngineSettings(weights="int8+head"), dummy_weights=True)
    assert next(loaded.model.parameters()).dtype == torch.uint8
    assert loaded.info().dtype == "float32"
    assert loaded.info().predicted_intervals == {}
    prefill, decode = (error_intervals()[kind, "family"] for kind in ("prefill", "decode"))  # no times of its kernels
    assert loaded.info(load_device("h100-sxm")).predicted_intervals == {
        "prefill": (prefill.low, prefill.high),
        "decode": (decode.low, decode.high),
        "mixed": (min(prefill.low, decode.low), max(prefill.high, decode.high)),
    }


def test_an_encoder_keeps_nothing(tmp_path: Path) -> None:
    write_bert(tmp_path)
    loaded = load_engine(str(tmp_path))
    info, llm = loaded.info(), AsyncLLM(loaded)
    llm.close()
    assert (info.held, info.concurrency, info.unshared) == ("", 0.0, "layers store nothing")
    assert repr(llm).startswith(f"AsyncLLM(context {info.context}, no KV cache, threads ")
