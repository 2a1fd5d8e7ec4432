"""An ordinary Hugging Face folder, written from a run of training."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor


@contextmanager
def replaced(folder: Path) -> Iterator[Path]:
    """A fresh folder beside `folder` to write into, whose files are then moved in one by one, so that a reader never
    meets half a file."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        fresh = Path(name)
        yield fresh
        for path in [path for path in fresh.rglob("*") if path.is_file()]:
            path.chmod(0o644)
            final = folder / path.relative_to(fresh)
            final.parent.mkdir(exist_ok=True)
            os.replace(path, final)


def save_weights(state: dict[str, Tensor], path: Path) -> None:
    """Write tensors in bfloat16."""
    weights = {key: value.to(torch.bfloat16).contiguous() for key, value in state.items()}
    save_file(weights, path, metadata={"format": "pt"})


def write_folder(
    folder: Path,
    state: dict[str, Tensor],
    config: dict[str, Any],
    generation: dict[str, Any],
    save_tokenizer: Callable[[Path], None],
) -> None:
    """Write the checkpoint in bfloat16. save_tokenizer: writes its files into the folder that it is given."""
    with replaced(folder) as fresh:
        save_weights(state, fresh / "model.safetensors")
        (fresh / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        (fresh / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
        save_tokenizer(fresh)


def export_run(export: Callable[[dict[str, Tensor], Tokenizer, Path], None]) -> None:
    """Export the moving average of a run's last checkpoint, finished or not."""
    parser = argparse.ArgumentParser(description=export_run.__doc__)
    parser.add_argument("--run", type=Path, required=True, help="folder of the training run")
    parser.add_argument("--out", type=Path, required=True, help="folder for the model")
    args = parser.parse_args()
    state = torch.load(args.run / "checkpoint.pt", weights_only=True)
    export(state["average"], Tokenizer.from_file(str(args.run / "tokenizer.json")), args.out)
    print(f"exported step {state['progress']['step']} to {args.out}")
