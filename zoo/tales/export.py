"""A trained decoder as an ordinary Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer
from torch import Tensor

from zoo.bpe import save_tokenizer
from zoo.folder import export_run, write_folder
from zoo.tales.model import Shape
from zoo.tales.tokenizer import BOS, EOS, ends

SAMPLING = {"do_sample": True, "temperature": 0.8, "top_p": 0.9, "max_new_tokens": 400}


def export(state: dict[str, Tensor], shape: Shape, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the checkpoint, its config, how it samples, and its tokenizer."""
    bos, eos = ends(tokenizer)
    write_folder(
        folder,
        state,
        shape.config(bos, eos),
        {"bos_token_id": bos, "eos_token_id": eos, **SAMPLING},
        lambda fresh: save_tokenizer(tokenizer, fresh, shape.max_position_embeddings, bos_token=BOS, eos_token=EOS),
    )


if __name__ == "__main__":
    export_run(lambda state, tokenizer, folder: export(state, Shape(), tokenizer, folder))
