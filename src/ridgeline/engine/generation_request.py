"""GenerationRequest: all that is asked for one prompt."""

from collections.abc import Sequence

import msgspec

from ridgeline.engine.encoder_features import EncoderFeatures
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.prompt_tokens import token_ids

DEFAULT_PARAMS = SamplingParams()
"""The sampling parameters of a request that states none."""


class GenerationRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """All that is asked for one prompt.

    A route or a call of the Python API makes it. The server's record of the request, the message to the engine and the
    engine's own request hold this object and copy none of its fields, so a new field needs no other change than its
    maker and its reader. It crosses processes as it is; fields that have their default take no bytes there.

    Raises:
        ValueError: the prompt, or the encoder's input, is not a sequence of token ids.
    """

    prompt: Sequence[int]
    """Token ids, not to be changed while the request runs. A simulation gives a NamedPrompt, which has none."""
    params: SamplingParams = DEFAULT_PARAMS
    """The rules of sampling and stopping. A model without a head takes the default alone."""
    encoder: tuple[int, ...] | EncoderFeatures = ()
    """The input of an encoder-decoder's encoder; any sequence of ids becomes a tuple."""
    images: EncoderFeatures | None = None
    """The patches of the images that stand in the prompt, in their order."""
    adapter: str = ""
    """The name of the LoRA adapter to use; "" for the model as it is."""
    cache_salt: bytes = b""
    """A secret of a tenant's: only requests with the same salt share a cached prefix."""
    service_tier: str = ""
    """The priority class, as the client spells it. The engine does not read it."""
    separate_reasoning: bool = True
    """Whether reasoning is told apart from the rest; otherwise the text is all that the model writes."""
    arrived: int = 0
    """The time at which a server took the request up, in nanoseconds of its time.perf_counter_ns. The engine does not
    read it: its own clock may be another."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "prompt", token_ids(self.prompt))
        if not isinstance(self.encoder, EncoderFeatures):
            msgspec.structs.force_setattr(self, "encoder", tuple(token_ids(self.encoder)))

    @property
    def cache_namespace(self) -> bytes:
        """The salt together with the adapter's name: prompts share a cached prefix only if theirs are equal."""
        return self.adapter.encode() + b"\0" + self.cache_salt if self.adapter else self.cache_salt
