"""Inputs of the cases: small random models, an adapter, sound, an image, texts; and a calibration, always the same.

The random models come from the helpers of tests/, which know nothing of the package under test.
"""

import hashlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from same_output_cases import listed
from same_output_running import Place, learnt_key

ROOT = Path(__file__).parents[1]
LETTERS = 300
"""Vocabulary of the families' small models: without a tokenizer, each byte of a prompt is a token."""


def write_inputs(folder: Path) -> None:
    """Write the files that lie in the working directory of every case."""
    folder.mkdir()
    for name, text in listed()["inputs"].items():
        (folder / name).write_text(text, encoding="utf-8")
    for name in ("story.txt", "french.txt"):
        shutil.copyfile(ROOT / "docs" / "texts" / name, folder / name)
    sys.path.insert(0, str(ROOT / "tests"))
    _write_families(folder / "families")
    _write_adapter(folder / "loud")
    _write_speech(folder)
    _write_embedder(folder / "embedder")
    _write_images(folder)


def _write_families(folder: Path) -> None:
    """Write a small config.json of each family of models, as FAMILY.json."""
    from models.configs import CONFIGS

    folder.mkdir()
    for name, config in CONFIGS.items():
        (folder / f"{name}.json").write_text(json.dumps(config | {"vocab_size": LETTERS}), encoding="utf-8")


def _write_adapter(folder: Path) -> None:
    """Write a LoRA adapter of `tales` as PEFT saves it."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    generator = torch.Generator().manual_seed(0)
    tensors = {
        f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_{half}.weight": 0.4
        * torch.randn(*((4, 192) if half == "A" else (192, 4)), generator=generator)
        for layer in range(5)
        for half in "AB"
    }
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 6, "target_modules": ["q_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")


def _write_speech(folder: Path) -> None:
    """Write a small speech model and two seconds of sound."""
    import soundfile

    from speech.folders import sound, write_speech_model

    write_speech_model(folder / "speech")
    soundfile.write(folder / "speech.wav", sound(2.2).numpy(), 16_000)


def _write_embedder(folder: Path) -> None:
    """Write a small BERT with mean pooling. Its tokens are letters: a trained vocabulary is another each time."""
    from string import ascii_lowercase

    from tokenizers.models import WordPiece

    from support.embedders import SPECIAL, TEXTS, state_pooling, wordpiece, write_bert

    folder.mkdir()
    write_bert(folder, vocab_size=LETTERS)
    pieces = (*SPECIAL, *ascii_lowercase, *(f"##{letter}" for letter in ascii_lowercase))
    tokenizer = wordpiece(TEXTS, LETTERS)
    tokenizer.model = WordPiece({piece: token for token, piece in enumerate(pieces)}, unk_token="[UNK]")
    tokenizer.save(str(folder / "tokenizer.json"))
    state_pooling(folder, "mean_tokens", "Normalize", prompts={"query": "the dog "})


def _write_images(folder: Path) -> None:
    """Write a small model that reads images and writes image tokens, and an image."""
    from PIL import Image

    from support.janus_folders import write_janus

    (folder / "janus").mkdir()
    write_janus(folder / "janus", seed=1)
    Image.linear_gradient("L").resize((31, 14)).convert("RGB").save(folder / "wide.png")


def write_calibration(place: Place) -> None:
    """Have the machine count as calibrated for one thread and for all cores, with constants that depend on the names of
    kernel classes alone, so that a kernel of another class changes a predicted figure."""
    counts = {1, len(os.sched_getaffinity(0))}
    calibrations = [_calibration(threads) for threads in sorted(counts)]
    path = Path(place.environment()["RIDGELINE_CACHE"]) / "calibration.json"
    path.write_text(json.dumps({"key": learnt_key(place), "calibrations": calibrations}), encoding="utf-8")


def _calibration(threads: int) -> dict[str, Any]:
    """Return what `ridgeline calibrate` writes for a number of threads, in made-up numbers.

    No processor beats its roofs, so that nothing is called faster than physics allows.
    """
    roof = 1e13 * threads
    pace = {"launch": 1.2, "compute": 1.1, "memory": 1.05}
    host = {"step": 1e-4, "op": 6e-6, "sequence": 1.2e-5, "token": 2e-6, "byte": 3.5e-12, "overlap": False,
            "asked": 1e-5, "ahead": False, "prompts": 2.7e-4}  # fmt: skip
    return {
        "title": "A processor for comparisons", "kind": "cpu", "threads": threads, "made": "2026-01-02 03:04",
        "seconds": 60.0, "memory": 16e9, "streams": [{"nbytes": 2**20, "read": roof, "copy": roof}], "bandwidth": roof,
        "caches": [{"name": "L3", "nbytes": 2.0**24, "bandwidth": 2 * roof}],
        "products": {"fp32": roof, "bf16": 2 * roof, "int8": 4 * roof},
        "classes": {name: _fitted(name) for name in listed()["classes"].split()},
        "host": host, "host_error": 0.05, "native": True, "pace": pace, "disturbed": pace, "residuals": [],
    }  # fmt: skip


def _fitted(name: str) -> dict[str, Any]:
    """Return constants of a kernel class that its name decides."""
    first, second, third, fourth = (byte / 256 for byte in hashlib.sha256(name.encode()).digest()[:4])
    launch = 1e-6 * (1 + 50 * first)
    efficiency = {"launch": launch, "compute": 0.001 * (0.2 + second), "memory": 0.002 * (0.2 + third),
                  "again": fourth, "blend": 2.0, "recorded": launch / 10}  # fmt: skip
    return {"efficiency": efficiency, "observations": 9, "median_error": 0.05, "worst_error": -0.2}
