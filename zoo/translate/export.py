"""A trained model as an ordinary Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer
from torch import Tensor

from zoo.bpe import save_tokenizer
from zoo.folder import export_run, write_folder
from zoo.translate.model import Shape, checkpoint
from zoo.translate.tokenizer import EOS, EOS_TOKEN, PAD, PAD_TOKEN

GENERATION = {"decoder_start_token_id": PAD, "pad_token_id": PAD, "eos_token_id": EOS, "temperature": 0.0}


def export(state: dict[str, Tensor], shape: Shape, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the checkpoint, its config, how it generates, and its tokenizer."""
    write_folder(
        folder,
        checkpoint(state, shape),
        shape.config(),
        GENERATION,
        lambda fresh: save_tokenizer(tokenizer, fresh, shape.n_positions, pad_token=PAD_TOKEN, eos_token=EOS_TOKEN),
    )


if __name__ == "__main__":
    export_run(lambda state, tokenizer, folder: export(state, Shape(), tokenizer, folder))
