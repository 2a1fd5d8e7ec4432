"""Trained parts as the folder of a pipeline, laid out as Z-Image's in diffusers, in bfloat16."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from zoo.bpe import save_tokenizer
from zoo.digits.autoencoder import Autoencoder, autoencoder_of
from zoo.digits.data import read_digits
from zoo.digits.model import TEXT, Drawer, Shape, TextBlock, TextShape
from zoo.digits.tokenizer import CHAT_TEMPLATE, END, PAD
from zoo.digits.train import load_weights
from zoo.digits.training import averaged
from zoo.folder import replaced, save_weights

PARTS = {
    "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
    "text_encoder": ["transformers", "Qwen3ForCausalLM"],
    "tokenizer": ["transformers", "PreTrainedTokenizerFast"],
    "transformer": ["diffusers", "ZImageTransformer2DModel"],
    "vae": ["diffusers", "AutoencoderKL"],
}
SCHEDULER = {
    "_class_name": "FlowMatchEulerDiscreteScheduler",
    "num_train_timesteps": 1000,
    "shift": 1.0,
    "use_dynamic_shifting": False,
}
DEFAULTS = {"sizes": ["32x32"], "num_inference_steps": 20, "guidance_scale": 3.0}
"""What a request is that says nothing else, under the names of diffusers' arguments."""
FAST_DEFAULTS = {**DEFAULTS, "num_inference_steps": 4, "guidance_scale": 0.0}
"""Of a pipeline that was distilled, with its guidance."""


def text_config(shape: TextShape, tokenizer: Tokenizer) -> dict[str, Any]:
    """config.json of the text encoder."""
    ends = {"bos_token_id": tokenizer.token_to_id(PAD), "eos_token_id": tokenizer.token_to_id(END)}
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        **vars(shape),
        **ends,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }


def text_state(state: dict[str, Tensor], shape: TextShape) -> dict[str, Tensor]:
    """The encoder's tensors under the names of Qwen3ForCausalLM. The last layer and the last norm, which nobody runs
    but every reader of the format looks for, add nothing: zeros, and ones in norms."""
    last = f"layers.{shape.num_hidden_layers - 1}"
    unused = {f"{last}.{name}": torch.zeros_like(value) for name, value in TextBlock(shape).state_dict().items()}
    unused = {name: torch.ones_like(value) if "norm" in name else value for name, value in unused.items()}
    every = {**state, **unused, "norm.weight": torch.ones(shape.hidden_size)}
    return {f"model.{name}": value for name, value in every.items()}


def export(drawer: Drawer, vae: Autoencoder, tokenizer: Tokenizer, folder: Path, *, fast: bool = False) -> None:
    """Write the pipeline. fast: one that was distilled, whose guesses are final."""
    shape, text = Shape(), TextShape()
    with replaced(folder) as fresh:
        for part in PARTS:
            (fresh / part).mkdir()
        write(fresh / "model_index.json", {"_class_name": "ZImagePipeline", **PARTS})
        write(fresh / "generation_config.json", FAST_DEFAULTS if fast else DEFAULTS)
        write(fresh / "scheduler/scheduler_config.json", {**SCHEDULER, "stochastic_sampling": fast})
        write(fresh / "transformer/config.json", shape.config())
        save_weights(drawer.transformer.state_dict(), fresh / "transformer/diffusion_pytorch_model.safetensors")
        write(fresh / "text_encoder/config.json", text_config(text, tokenizer))
        save_weights(text_state(drawer.text_encoder.state_dict(), text), fresh / "text_encoder/model.safetensors")
        save_tokenizer(tokenizer, fresh / "tokenizer", TEXT, pad_token=PAD, eos_token=END)
        (fresh / "tokenizer/chat_template.jinja").write_text(CHAT_TEMPLATE)
        save_autoencoder(vae, fresh / "vae")


def save_autoencoder(vae: Autoencoder, folder: Path) -> None:
    """Write the folder of the autoencoder."""
    config = {name: value for name, value in vae.config.items() if not name.startswith("_")}
    write(folder / "config.json", {"_class_name": "AutoencoderKL", **config})
    save_weights(vae.state_dict(), folder / "diffusion_pytorch_model.safetensors")


def write(path: Path, values: dict[str, Any]) -> None:
    """Write a JSON object."""
    path.write_text(json.dumps(values, indent=2) + "\n")


def main() -> None:
    """Export the averaged weights of the last checkpoints, finished or not."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with t10k-images-idx3-ubyte.gz and labels")
    vae_of = parser.add_mutually_exclusive_group(required=True)
    vae_of.add_argument("--autoencoder", type=Path, help="folder of the autoencoder's run")
    vae_of.add_argument("--weights", type=Path, help="exported pipeline that the run started from")
    parser.add_argument("--fast", action="store_true", help="the run distilled the pipeline given as --weights")
    parser.add_argument("--run", type=Path, required=True, help="folder of the run that drew on it")
    parser.add_argument("--out", type=Path, required=True, help="folder for the pipeline")
    args = parser.parse_args()
    vae = autoencoder_of(read_digits(args.data)[0].images, args.autoencoder, args.weights)
    drawer, tokenizer = Drawer(Shape(), TextShape()), args.run / "tokenizer.json"
    if args.fast:
        load_weights(drawer, args.weights)
        averaged(drawer.transformer, args.run)
        tokenizer = args.weights / "tokenizer/tokenizer.json"
    else:
        averaged(drawer, args.run)
    export(drawer, vae, Tokenizer.from_file(str(tokenizer)), args.out, fast=args.fast)
    print(f"exported {sum(path.stat().st_size for path in args.out.rglob('*') if path.is_file()) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
