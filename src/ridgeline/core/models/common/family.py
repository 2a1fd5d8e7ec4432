"""Family: the models of one architecture, how to build one of them, and the tensor names in its checkpoints.

A family is one file of families/. Its `build(fields, storage)` runs on the meta device:

**It reads the config** through `Fields`. `read_dimensions` (dimensions.py) reads the sizes that most decoders spell
alike; pass the sizes for which the family has another name or default. `read_rope` (rope.py) reads the rotary
embedding, with `RopeDefaults` for fields that the config leaves out; windows.py reads which layers have a sliding
window, and mixture.py reads the experts. An absent field gets the default of transformers, or is refused. `Fields`
treats null as absent; if the reference distinguishes them (null means no soft cap, absent means 50), look into
`fields.values`, as `read_softcap` does.

**It leaves no key unread.** Read each key of the released configs, or name it in `fields.ignore(...)` if the reference
ignores it. `Fields.refuse_unread` refuses an unread key if its name says that it changes the result. Use
`fields.require_off` for a setting that is not implemented and whose name does not say so.

**It connects parts**: `SelfAttention`, `MLP`, `GatedMLP`, `Backbone` and `Decoder` (decoder.py), `Mixture`
(mixture.py), one of the blocks of blocks.py (they differ in the place of their norms), and ops. Whatever is special in
the family is an argument of a part, not a flag in `Dimensions`. `Dimensions` makes the matrix specs of the parts
(`qkv`, `gate_up`, `fused`, `column`, `row`, `whole`) and says how ranks divide them. `build_decoder` (llama_decoder.py)
makes a plain backbone and head; call `Backbone` and `Decoder` for a scaled embedding, another final norm or a soft cap.
A block that only this family has is a class in the family's file. It passes the residual stream on as two summands,
because the next norm does the addition (`AddRMSNorm`); the first block's norm has nothing to add (`add_norm` handles
both). Add such a block to the blocks of tests/support/differences.py, which finds the first module that differs from
transformers.

**Only ops compute**: the cost audit refuses arithmetic between them. If an op lacks something, add an argument to the
op.

**Modules have the names of the checkpoint's tensors**, so that loading needs no table. A module that only groups others
is `unnamed` and left out of the name: `self_attn.qkv.q_proj.weight` is `self_attn.q_proj.weight` in a file, because
`Projections` is unnamed. A name that differs from those of similar families is one of the `renames` of the `Family`. If
the name of an architecture does not say that it is a mixture of experts, list it in architecture_name.py.

The kind of the `Family` selects the rest. Build an encoder-decoder from encoder_decoder.py, an encoder from encoder.py.
A model whose prompts may contain images sets `Model.images`, one that generates image tokens
`Model.sampled_vocab_size`. The `build` of a denoiser returns a `Denoiser` (denoiser.py).
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.priced_module import PricedModule
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.from_transformers.tensor_conversion import TensorConversion

Builder = Callable[[Fields, StorageConfig], PricedModule]
"""The function that builds a family's model from a config and a storage configuration."""
FamilyKind = Literal[
    "decoder", "vision", "encoder", "encoder-decoder", "speech", "drawer", "denoiser", "autoencoder"
]  # fmt: skip
"""The kind of model that a family builds.

A decoder generates text; a vision model does too, and also reads images. An encoder reads a text and generates none.
The encoder of an encoder-decoder reads the prompt, that of a speech model reads audio. A drawer generates the tokens of
an image. A denoiser and an autoencoder are parts of a diffusion pipeline.
"""


@dataclass(frozen=True, slots=True)
class Family:
    """A model family: the name of its architecture in config.json, and how to build and load its models."""

    architecture: str
    """The architecture of a model family, as in `architectures` of config.json, or the class name of diffusers."""
    model_type: str
    """The `model_type` that identifies a model family in a config without `architectures`."""
    build: Builder
    backbone_prefix: str = "model."
    """The prefix of tensor names that checkpoints of the bare model (without a head) leave out."""
    renames: tuple[tuple[str, str], ...] = ()
    """Pairs of a part of a tensor's name in checkpoints and the name here, if it differs from similar families'."""
    ignored: tuple[str, ...] = (r"(.*\.)?rotary_emb\.inv_freq",)
    """Patterns of tensors in old checkpoints that the model does not load."""
    also: tuple[str, ...] = ()
    """Other architectures that the family's `build` builds, such as the same model with a head that is not loaded."""
    old_names: tuple[tuple[str, str], ...] = ()
    """Pairs of a part of a tensor's name in old checkpoints and the name today."""
    kind: FamilyKind = "decoder"
    upcast_from: tuple[str, ...] = ()
    """Recipes whose weights the loader widens to the model's dtype, because no op runs on them."""
    upcasts_fp16: bool = False
    """Whether an fp16 model runs in fp32, because its hidden states exceed the range of fp16."""
    prefixes: tuple[tuple[str, str], ...] = ()
    """Pairs of a prefix of the checkpoint's names and the model's prefix; any of the pairs may apply to a name."""
    trained_contexts: tuple[tuple[int, int], ...] = ()
    """Pairs of the context in configs and the shorter one on which models were trained, as their cards state it."""

    def builds(self, architecture: str) -> bool:
        """Return whether this model family builds models of an architecture."""
        return architecture in (self.architecture, *self.also)

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether a family's models are text encoder-decoders: an encoder reads the prompt.

        The decoder then begins with a start token of its own.
        """
        return self.kind == "encoder-decoder"

    @property
    def generates(self) -> bool:
        """Whether a family's models generate output, which encoders do not."""
        return self.kind != "encoder"

    def model_name(self, name: str) -> str:
        """Return the model's name of a module or tensor, from its name in a checkpoint."""
        theirs, ours = next((pair for pair in self.prefixes if name.startswith(pair[0])), ("", ""))
        name = ours + name.removeprefix(theirs)
        for theirs, ours in (*self.old_names, *self.renames):
            name = name.replace(theirs, ours)
        return name

    def conversions(self, names: Iterable[str]) -> Sequence[TensorConversion]:
        """Return the conversions by which some tensors of a checkpoint together become tensors of the model.

        Args:
            names: The names of all tensors of the checkpoint.
        """
        return ()

    def ignores(self, name: str) -> bool:
        """Return whether a model may leave out a checkpoint tensor that fills no parameter, judged by its name."""
        return any(re.fullmatch(pattern, name) for pattern in self.ignored)

    def checkpoint_name(self, name: str) -> str:
        """Return the usual name in checkpoints of a model's module or tensor.

        The lists of modules in the configs of checkpoints use it too.
        """
        return self.checkpoint_names(name)[0]

    def checkpoint_names(self, name: str) -> tuple[str, ...]:
        """Return every name that checkpoints and lists of modules use for a module or tensor of the model.

        The usual name is first, then those of older or newer tools, of the text model alone and of the bare model.
        """
        for theirs, ours in reversed(self.renames):
            name = name.replace(ours, theirs)
        begun = (theirs + name.removeprefix(ours) for theirs, ours in self.prefixes if name.startswith(ours))
        return tuple(dict.fromkeys((*begun, name, name.removeprefix(self.backbone_prefix))))
