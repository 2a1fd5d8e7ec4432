"""Trained parts as the folder of a pipeline, laid out as Wan's in diffusers, in bfloat16."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from zoo.bpe import save_tokenizer
from zoo.digits.autoencoder import Autoencoder, autoencoder_in
from zoo.digits.data import SIDE
from zoo.digits.export import save_autoencoder, write
from zoo.digits.training import averaged
from zoo.digits_video.data import FRAMES
from zoo.digits_video.model import TEXT, TEXT_SHAPE, ClipDrawer, Shape, TextShape
from zoo.folder import replaced, save_weights
from zoo.translate.model import checkpoint, state_of
from zoo.translate.tokenizer import EOS, EOS_TOKEN, PAD, PAD_TOKEN

PARTS = {
    "scheduler": ["diffusers", "UniPCMultistepScheduler"],
    "text_encoder": ["transformers", "UMT5EncoderModel"],
    "tokenizer": ["transformers", "PreTrainedTokenizerFast"],
    "transformer": ["diffusers", "WanTransformer3DModel"],
    "vae": ["diffusers", "AutoencoderKL"],
}
SCHEDULER = {
    "_class_name": "UniPCMultistepScheduler",
    "num_train_timesteps": 1000,
    "prediction_type": "flow_prediction",
    "use_flow_sigmas": True,
    "flow_shift": 3.0,
}
DEFAULTS = {
    "sizes": [f"{SIDE}x{SIDE}"],
    "num_frames": FRAMES,
    "num_inference_steps": 20,
    "guidance_scale": 4.0,
}
"""What a request is that says nothing else, under the names of diffusers' arguments."""
_BIAS = "SelfAttention.relative_attention_bias.weight"


def text_config(shape: TextShape) -> dict[str, Any]:
    """config.json of the text encoder."""
    own = {name: value for name, value in vars(shape).items() if name not in ("num_decoder_layers", "n_positions")}
    return {
        "architectures": ["UMT5EncoderModel"],
        "model_type": "umt5",
        **own,
        "feed_forward_proj": "gated-gelu",
        "is_encoder_decoder": False,
        "tie_word_embeddings": True,
        "pad_token_id": PAD,
        "eos_token_id": EOS,
        "torch_dtype": "bfloat16",
    }


def text_state(state: dict[str, Tensor], shape: TextShape) -> dict[str, Tensor]:
    """The encoder's tensors as those of UMT5, whose layers have a bias each: here all the same."""
    bias = state[f"encoder.block.0.layer.0.{_BIAS}"]
    every = {f"encoder.block.{layer}.layer.0.{_BIAS}": bias.clone() for layer in range(shape.num_layers)}
    return {**checkpoint(state, shape), **every}


def load_weights(drawer: ClipDrawer, folder: Path) -> None:
    """Start from an exported pipeline."""
    drawer.transformer.load_state_dict(load_file(folder / "transformer/diffusion_pytorch_model.safetensors"))
    state = state_of(load_file(folder / "text_encoder/model.safetensors"), TEXT_SHAPE)
    drawer.text_encoder.load_state_dict({name: state[name] for name in drawer.text_encoder.state_dict()})


def export(drawer: ClipDrawer, vae: Autoencoder, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the pipeline."""
    with replaced(folder) as fresh:
        for part in PARTS:
            (fresh / part).mkdir()
        write(fresh / "model_index.json", {"_class_name": "WanPipeline", **PARTS})
        write(fresh / "generation_config.json", DEFAULTS)
        write(fresh / "scheduler/scheduler_config.json", SCHEDULER)
        write(fresh / "transformer/config.json", Shape().config())
        save_weights(drawer.transformer.state_dict(), fresh / "transformer/diffusion_pytorch_model.safetensors")
        write(fresh / "text_encoder/config.json", text_config(TEXT_SHAPE))
        save_weights(text_state(drawer.text_encoder.state_dict(), TEXT_SHAPE), fresh / "text_encoder/model.safetensors")
        save_tokenizer(tokenizer, fresh / "tokenizer", TEXT, pad_token=PAD_TOKEN, eos_token=EOS_TOKEN)
        save_autoencoder(vae, fresh / "vae")


def main() -> None:
    """Export the averaged weights of the last checkpoint, finished or not."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--pipeline", type=Path, required=True, help="folder of `digits`, whose autoencoder is used")
    parser.add_argument("--run", type=Path, required=True, help="folder of the run")
    parser.add_argument("--out", type=Path, required=True, help="folder for the pipeline")
    args = parser.parse_args()
    vae = autoencoder_in(args.pipeline)
    drawer = ClipDrawer(Shape(), TEXT_SHAPE)
    averaged(drawer, args.run)
    export(drawer, vae, Tokenizer.from_file(str(args.run / "tokenizer.json")), args.out)
    print(f"exported {sum(path.stat().st_size for path in args.out.rglob('*') if path.is_file()) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
