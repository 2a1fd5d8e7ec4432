"""The tensors of a GGUF file as a checkpoint of the model's family has them.

What its converter (convert_hf_to_gguf.py) changed is undone: the rows of Llama's queries and keys, which it puts in the
order of a rope that turns neighbours, and Gemma's norms, to which it adds 1.
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
    """A Checkpoint of one GGUF file, by the names of the family; entries keep the file's own.

    model_dtype: what is not in blocks becomes. heads: how many there are, by the ends of the names of matrices whose
    rows are in the order of a rope that turns neighbours. from_one: whether norms have 1 added.
    """

    model_dtype: torch.dtype
    heads: dict[str, int]
    from_one: bool

    @override
    def data_offset(self, file: BinaryIO) -> int:
        """As Checkpoint.data_offset: entries count from the start."""
        return 0

    @override
    def tensors(self, *, mapped: bool = True) -> Iterator[tuple[str, Tensor]]:
        """As Checkpoint.tensors: matrices in blocks as bytes [O, B], all else as numbers."""
        size = self.folder.stat().st_size
        whole = torch.from_file(str(self.folder), shared=False, size=size, dtype=torch.uint8)
        for name, entry in self.entries.items():
            yield name, self.as_given(name, whole[entry.begin : entry.end]) if mapped else self.read(name)

    @override
    def as_given(self, name: str, raw: Tensor) -> Tensor:
        return self._ordered(name, self._numbers(name, self.entries[name], raw))

    def _numbers(self, name: str, entry: TensorEntry, raw: Tensor) -> Tensor:
        if entry.dtype in BLOCKS:
            if len(entry.shape) != 2:
                raise ModelRefused(f"{self.folder}: tensor {entry.name} {list(entry.shape)} in blocks is no matrix")
            return raw.view(entry.shape[0], -1)
        numbers = raw.view(_DTYPES[entry.dtype]).view(entry.shape)
        if self.from_one and name.endswith("norm.weight"):
            numbers = numbers.float() - 1
        return numbers.to(self.model_dtype)

    def _ordered(self, name: str, rows: Tensor) -> Tensor:
        """Rows of queries and keys as they were: the first halves of each pair of a head, then the second ones."""
        heads = next((count for part, count in self.heads.items() if name.endswith(part)), None)
        if heads is None:
            return rows
        if len(rows) % (2 * heads):
            raise ModelRefused(
                f"{self.folder}: the {len(rows)} rows of {name} do not divide into pairs of {heads} heads"
            )
        return rows.reshape(heads, -1, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def open_gguf_checkpoint(header: GGUFHeader) -> GGUFCheckpoint:
    """The tensors that a file's header describes. Raises ModelRefused."""
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
