"""The tensors of a GGUF file in the form of a Hugging Face checkpoint.

The changes that the converter to GGUF (convert_hf_to_gguf.py) made are undone: it permutes the rows of Llama's queries
and keys for a rotary embedding that rotates adjacent pairs, and adds 1 to Gemma's norms.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import torch
from torch import Tensor
from typing_extensions import override

from ridgeline.core.checkpoint.folder import Checkpoint
from ridgeline.core.checkpoint.gguf_config import read_gguf_config, tensor_names
from ridgeline.core.checkpoint.gguf_header import GGUFHeader
from ridgeline.core.checkpoint.safetensors_header import TensorEntry
from ridgeline.core.models.common.fields import ModelRefused
from ridgeline.core.ops.matrix.gguf_matrix import BLOCKS

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class GGUFCheckpoint(Checkpoint):
    """The checkpoint in one GGUF file, by Hugging Face tensor names; the header entries have the GGUF names."""

    model_dtype: torch.dtype
    """The dtype to which GGUF tensors without quantised blocks are converted."""
    heads: dict[str, int]
    """The number of heads by name suffix, for weights and biases whose rows GGUF permutes for adjacent rotary pairs."""
    from_one: bool
    """Whether the GGUF file has 1 added to the weights of norms (Gemma)."""

    @override
    def data_offset(self, file: BinaryIO) -> int:
        return 0

    @override
    def tensors(self, *, mapped: bool = True) -> Iterator[tuple[str, Tensor]]:
        """Yield every tensor of the model in a GGUF file: matrices in blocks as bytes [O, B], all others as numbers.

        The rotary factors are part of the config instead.
        """
        size = self.folder.stat().st_size
        whole = torch.from_file(str(self.folder), shared=False, size=size, dtype=torch.uint8)
        for name, entry in self.entries.items():
            yield name, self.from_bytes(name, whole[entry.begin : entry.end]) if mapped else self.read(name)

    @override
    def from_bytes(self, name: str, raw: Tensor) -> Tensor:
        return self._ordered(name, self._numbers(name, self.entries[name], raw))

    def _numbers(self, name: str, entry: TensorEntry, raw: Tensor) -> Tensor:
        """Convert a GGUF tensor's bytes to numbers of the model's dtype; matrices in blocks stay bytes."""
        if entry.dtype in BLOCKS:
            if len(entry.shape) != 2:
                raise ModelRefused(
                    f"{self.folder}: tensor {entry.name} {list(entry.shape)} is quantized in blocks, but is not "
                    "a matrix; fetch it again"
                )
            return raw.view(entry.shape[0], -1)
        numbers = raw.view(_DTYPES[entry.dtype]).view(entry.shape)
        if self.from_one and name.endswith("norm.weight"):
            numbers = numbers.float() - 1
        return numbers.to(self.model_dtype)

    def _ordered(self, name: str, rows: Tensor) -> Tensor:
        """Restore the original row order of query and key weights and biases, which GGUF permutes.

        For each head the first elements of all rotary pairs come first, then the second elements.
        """
        heads = next((count for part, count in self.heads.items() if name.endswith(part)), None)
        if heads is None:
            return rows
        if len(rows) % (2 * heads):
            raise ModelRefused(
                f"{self.folder}: the {len(rows)} rows of {name} do not divide into pairs of {heads} heads"
            )
        return rows.reshape(heads, -1, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def open_gguf_checkpoint(header: GGUFHeader) -> GGUFCheckpoint:
    """Return the checkpoint of a GGUF file.

    Raises:
        ModelRefused: If the model is not supported.
    """
    fields = read_gguf_config(header)
    names = tensor_names(header)
    entries = {ours: header.tensors[theirs] for theirs, ours in names.items()}
    heads: dict[str, int] = {}
    if fields.values["model_type"] == "llama":
        queries, keys = fields.count("num_attention_heads"), fields.count("num_key_value_heads")
        heads = {
            f"self_attn.{part}_proj.{own}": count
            for part, count in (("q", queries), ("k", keys))
            for own in ("weight", "bias")
        }
    return GGUFCheckpoint(
        header.path,
        entries,
        dict.fromkeys(entries, header.path),
        model_dtype=fields.dtype,
        heads=heads,
        from_one=fields.values["model_type"] == "gemma2",
    )
