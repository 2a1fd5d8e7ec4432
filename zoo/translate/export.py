"""A trained model as an ordinary Hugging Face folder."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from zoo.translate.model import Shape, checkpoint
from zoo.translate.tokenizer import EOS, PAD, save_tokenizer

GENERATION = {"decoder_start_token_id": PAD, "pad_token_id": PAD, "eos_token_id": EOS, "temperature": 0.0}


def export(state: dict[str, Tensor], shape: Shape, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the checkpoint beside `folder`, then move it in file by file, so that a reader never meets half a file."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        fresh = Path(name)
        weights = {key: value.to(torch.bfloat16).contiguous() for key, value in checkpoint(state, shape).items()}
        save_file(weights, fresh / "model.safetensors", metadata={"format": "pt"})
        (fresh / "config.json").write_text(json.dumps(shape.config(), indent=2) + "\n")
        (fresh / "generation_config.json").write_text(json.dumps(GENERATION, indent=2) + "\n")
        save_tokenizer(tokenizer, fresh, shape.n_positions)
        for path in fresh.iterdir():
            path.chmod(0o644)
            os.replace(path, folder / path.name)


def main() -> None:
    """Export the moving average of a run's last checkpoint, finished or not."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--run", type=Path, required=True, help="folder of the training run")
    parser.add_argument("--out", type=Path, required=True, help="folder for the model")
    args = parser.parse_args()
    state = torch.load(args.run / "checkpoint.pt", weights_only=True)
    export(state["average"], Shape(), Tokenizer.from_file(str(args.run / "tokenizer.json")), args.out)
    print(f"exported step {state['progress']['step']} to {args.out}")


if __name__ == "__main__":
    main()
