"""Family: the models of an architecture, how one of them is built and what checkpoints call its tensors.

A family is one file of families/. Its `build(fields, storage)` runs on the meta device:

**It reads the config** through `Fields`. `read_dimensions` (dimensions.py) reads the sizes that most decoders spell
alike; pass it what the family spells otherwise or has another default for. `read_rope` (rope.py) reads the rotary
embedding, with `RopeDefaults` for what a config leaves out; windows.py reads which layers have a window, mixture.py the
experts. A field that is left out means what transformers takes for it, or is refused. `Fields` takes null for absent;
if the reference tells the two apart (null is no soft cap, absent is 50), look into `fields.values`, as `read_softcap`
does.

**It leaves no key unread.** Each key of the released configs is read, or named in `fields.ignore(...)` if the
reference ignores it. `Fields.refuse_unread` refuses a key that nobody has read if its name says that it changes the
result; a setting that is not built and whose name does not say so takes `fields.require_off`.

**It connects parts**: `SelfAttention`, `MLP`, `GatedMLP`, `Backbone` and `Decoder` (decoder.py), `Mixture`
(mixture.py), one of the blocks of blocks.py (they differ in where they normalise), and ops. What is the family's own is
an argument of a part, not a flag in `Dimensions`, which makes the matrices of the parts (`qkv`, `gate_up`, `fused`,
`column`, `row`, `whole`) and says how ranks divide them. `build_decoder` (llama_decoder.py) makes a plain backbone and
head; call `Backbone` and `Decoder` for a scaled embedding, another last norm or a soft cap. A block of its own is a
class in the family's file. It passes the residual stream on as two summands, because the norm that follows does the
addition (`AddRMSNorm`); the first block's norm has nothing to add (`add_norm` handles both). Such a block joins the
blocks of tests/support/differences.py, which finds the first module that differs from transformers.

**Only ops compute**: the cost audit refuses arithmetic between them. What an op lacks becomes an argument of the op.

**Modules have the names of the checkpoint's tensors**, so that loading needs no table. A module that only groups others
is `unnamed` and left out of the name: `self_attn.qkv.q_proj.weight` is `self_attn.q_proj.weight` in a file, because
`Projections` is. A name that differs from those of similar families is one of the `renames` of the `Family`. A mixture
whose architecture does not say so in its name is listed in architecture_name.py.

The kind of the `Family` says what else it is. An encoder-decoder is built from encoder_decoder.py, an encoder from
encoder.py. A model whose prompts have images in them has `Model.images`, one that writes image tokens
`Model.sampled_vocab_size`. The `build` of a denoiser gives a `Denoiser` (denoiser.py).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.priced_module import PricedModule
from ridgeline.core.models.common.storage import StorageConfig

Builder = Callable[[Fields, StorageConfig], PricedModule]
FamilyKind = Literal[
    "decoder", "vision", "encoder", "encoder-decoder", "speech", "drawer", "denoiser", "autoencoder"
]  # fmt: skip
"""The kinds of model: a decoder writes text; a vision model does, and reads images too; an encoder reads a text and
writes none; the encoder of an encoder-decoder reads the prompt, that of a speech model sound; a drawer writes the
tokens of an image; a denoiser and an autoencoder are parts of a pipeline that draws."""


@dataclass(frozen=True, slots=True)
class Family:
    """A family: the architecture it is called in config.json, and how it is built and loaded.

    model_type: what a config without `architectures` says instead.
    trunk: the prefix that checkpoints of the bare model leave out.
    renames: a part that checkpoints call otherwise than its kin do, and what it is called here.
    ignored: patterns of tensors that old checkpoints carry and nothing reads.
    also: other architectures that are built alike: the same with a head that is left out.
    old_names: parts that old checkpoints call otherwise, and what they are called today.
    kind: the kind of model that is built.
    upcast_from: recipes whose weights are widened to the model's dtype as they are loaded, so that the model runs.
    widens_fp16: whether a model in fp16 runs in fp32, because its hidden states go beyond the range of fp16.
    prefixes: how names begin in checkpoints, in any of these ways, and how here.
    """

    architecture: str
    model_type: str
    build: Builder
    trunk: str = "model."
    renames: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = (r"(.*\.)?rotary_emb\.inv_freq",)
    also: tuple[str, ...] = ()
    old_names: tuple[tuple[str, str], ...] = ()
    kind: FamilyKind = "decoder"
    upcast_from: tuple[str, ...] = ()
    widens_fp16: bool = False
    prefixes: tuple[tuple[str, str], ...] = ()

    def builds(self, architecture: str) -> bool:
        """Whether models of this architecture are of it."""
        return architecture in (self.architecture, *self.also)

    @property
    def encodes(self) -> bool:
        """Whether an encoder reads the prompt, and the decoder begins with a token of its own."""
        return self.kind == "encoder-decoder"

    @property
    def writes(self) -> bool:
        """Whether its models write text."""
        return self.kind != "encoder"

    def own_name(self, name: str) -> str:
        """What the model calls a module or a tensor of a checkpoint."""
        theirs, ours = next((pair for pair in self.prefixes if name.startswith(pair[0])), ("", ""))
        name = ours + name.removeprefix(theirs)
        for theirs, ours in (*self.old_names, *self.renames):
            name = name.replace(theirs, ours)
        return name

    def checkpoint_name(self, name: str) -> str:
        """What checkpoints, and the lists of modules in their configs, call a module or a tensor of the model."""
        return self.spellings(name)[0]

    def spellings(self, name: str) -> tuple[str, ...]:
        """Return every name that checkpoints and lists of modules have for a module or a tensor of the model: first the
        usual one, then those of older or newer tools, of the text half alone and of the bare model.
        """
        for theirs, ours in reversed(self.renames):
            name = name.replace(ours, theirs)
        begun = (theirs + name.removeprefix(ours) for theirs, ours in self.prefixes if name.startswith(ours))
        return tuple(dict.fromkeys((*begun, name, name.removeprefix(self.trunk))))
