"""Both trained parts as one folder, laid out as transformers' Janus, in bfloat16."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import JanusVisionConfig
from transformers.models.janus.modeling_janus import JanusVisionAlignerMLP, JanusVisionModel

from zoo.bpe import save_tokenizer
from zoo.digits.data import SIDE
from zoo.digits.training import averaged
from zoo.digits_ar.autoencoder import TOKENS_A_SIDE, Autoencoder, trained
from zoo.digits_ar.autoencoder import config as vq_config
from zoo.digits_ar.model import Drawer, Shape
from zoo.digits_ar.tokenizer import BEGIN, END, PLACE
from zoo.folder import write_folder
from zoo.tales.tokenizer import BOS, EOS, ends

SAMPLING = {"do_sample": True, "temperature": 0.85, "top_p": 0.9, "guidance_scale": 1.0}
"""A scale of 1 is no guidance."""


def vision_config(width: int) -> dict[str, Any]:
    """Keys of the least tower that the layout allows, which reads no images: it says how many tokens a picture has.
    width: of the decoder."""
    return {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "mlp_ratio": 1.0,
        "image_size": SIDE,
        "patch_size": SIDE // TOKENS_A_SIDE,
        "num_image_tokens": TOKENS_A_SIDE**2,
        "projection_dim": width,
        "depth": 1,
    }


def config(shape: Shape, tokenizer: Tokenizer) -> dict[str, Any]:
    """config.json."""
    text = shape.config(*ends(tokenizer))
    architecture, dtype = text.pop("architectures"), text.pop("torch_dtype")
    assert architecture == ["LlamaForCausalLM"]
    width = shape.hidden_size
    head = {"projection_dim": width, "image_token_embed_dim": width, "num_hidden_layers": 2, "hidden_act": "gelu"}
    return {
        "architectures": ["JanusForConditionalGeneration"],
        "model_type": "janus",
        "image_token_id": tokenizer.token_to_id(PLACE),
        "tie_word_embeddings": True,
        "text_config": text,
        "vision_config": vision_config(width),
        "vq_config": {**vq_config(), **head},
        "torch_dtype": dtype,
    }


def tower_state(shape: Shape) -> dict[str, Tensor]:
    """The tower, and what would bring its rows to the decoder, as before any training: at random, ones in norms. Zeros
    are what `ridgeline check` takes for an interrupted download."""
    of_tower: Any = JanusVisionConfig(**vision_config(shape.hidden_size))
    parts: dict[str, Any] = {"vision_model": JanusVisionModel(of_tower), "aligner": JanusVisionAlignerMLP(of_tower)}
    state = {f"model.{part}.{name}": t for part, module in parts.items() for name, t in module.state_dict().items()}
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.ones_like(value)
        if "norm" in name and name.endswith("weight")
        else 0.02 * torch.randn(value.shape, generator=generator)
        for name, value in state.items()
    }


def state_of(drawer: Drawer, vq: Autoencoder, shape: Shape) -> dict[str, Tensor]:
    """All tensors under the names of JanusForConditionalGeneration. The head of text is the table of its rows."""
    own = drawer.state_dict()
    decoder = {
        "model." + (name if name.startswith("generation_") else f"language_model.{name.removeprefix('model.')}"): value
        for name, value in own.items()
    }
    return {
        **decoder,
        **{f"model.vqmodel.{name}": value for name, value in vq.state_dict().items()},
        **tower_state(shape),
    }


def export(drawer: Drawer, vq: Autoencoder, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the model."""
    shape = Shape()
    bos, eos = ends(tokenizer)
    generation = {
        "bos_token_id": bos,
        "eos_token_id": eos,
        "pad_token_id": eos,
        "generation_kwargs": {"boi_token_id": tokenizer.token_to_id(BEGIN)},
        **SAMPLING,
    }
    special = {"bos_token": BOS, "eos_token": EOS, "boi_token": BEGIN, "eoi_token": END, "image_token": PLACE}
    write_folder(
        folder,
        state_of(drawer, vq, shape),
        config(shape, tokenizer),
        generation,
        lambda fresh: save_tokenizer(tokenizer, fresh, shape.max_position_embeddings, **special),
    )


def main() -> None:
    """Export the averaged weights of the last checkpoints, finished or not."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--autoencoder", type=Path, required=True, help="folder of the autoencoder's run")
    parser.add_argument("--run", type=Path, required=True, help="folder of the run that drew on it")
    parser.add_argument("--out", type=Path, required=True, help="folder for the model")
    args = parser.parse_args()
    drawer = Drawer(Shape())
    averaged(drawer, args.run)
    export(drawer, trained(args.autoencoder), Tokenizer.from_file(str(args.run / "tokenizer.json")), args.out)


if __name__ == "__main__":
    main()
