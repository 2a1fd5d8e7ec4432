"""The request for the completion of one prompt."""

from collections.abc import Sequence

import msgspec

from ridgeline.engine.encoder_features import EncoderFeatures
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.prompt_tokens import token_ids

DEFAULT_PARAMS = SamplingParams()
"""The sampling parameters of a request that does not state any."""


class GenerationRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The request for the completion of one prompt, as an HTTP route or a call of the Python API makes it.

    The server's record of the request, the message to the engine and the engine's own request hold this object and copy
    none of its fields, so a new field needs no other change than its maker and its reader. It crosses processes as it
    is; fields with their default take no bytes there.

    Raises:
        ValueError: If the prompt, or the encoder's input, is not a sequence of token ids.
    """

    prompt: Sequence[int]
    """The token ids of the prompt, which must not change while the request runs. A simulation uses a NamedPrompt."""
    params: SamplingParams = DEFAULT_PARAMS
    """The sampling parameters and stopping rules. A model without a head accepts only the default."""
    encoder: tuple[int, ...] | EncoderFeatures = ()
    """The input of an encoder-decoder's encoder; any sequence of ids becomes a tuple."""
    images: EncoderFeatures | None = None
    """The patches of the images in the prompt, in their order."""
    adapter: str = ""
    """The name of the LoRA adapter to use; "" for the model as it is."""
    cache_salt: bytes = b""
    """A tenant's secret: only requests with the same salt share a cached prefix."""
    service_tier: str = ""
    """The priority class, as the client spells it. The engine does not read it."""
    separate_reasoning: bool = True
    """Whether to separate the reasoning from the rest; if not, the text is everything that the model writes."""
    arrived: int = 0
    """The time at which a server received the request, in nanoseconds of its time.perf_counter_ns.

    The engine does not read it: its own clock may be another.
    """

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "prompt", token_ids(self.prompt))
        if not isinstance(self.encoder, EncoderFeatures):
            msgspec.structs.force_setattr(self, "encoder", tuple(token_ids(self.encoder)))

    @property
    def cache_namespace(self) -> bytes:
        """The salt together with the adapter's name: prompts share a cached prefix only if theirs are equal."""
        return self.adapter.encode() + b"\0" + self.cache_salt if self.adapter else self.cache_salt
