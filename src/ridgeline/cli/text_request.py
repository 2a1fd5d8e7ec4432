"""The steps from user input to a request: load the model, choose sampling, encode the prompt, check its length."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from ridgeline.backends import priced_backend
from ridgeline.cli import options
from ridgeline.cli.console import loading_bar, read_text, say, say_definition, say_warnings, status
from ridgeline.cli.flags import option_values, panel
from ridgeline.cli.options import parse_tokens
from ridgeline.core.checkpoint import ModelSource
from ridgeline.core.checkpoint.source import as_source
from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.rope_override import offer_longer_context
from ridgeline.core.text.byte_tokenizer import ByteTokenizer
from ridgeline.engine import LLM, EngineSettings, SamplingParams
from ridgeline.engine.engine_builder import warm_up
from ridgeline.media.images.image_generator import generates_image_tokens

SPEECH_MODEL_ERROR = "the model reads audio, not text; use ridgeline transcribe FILE --model FOLDER"
"""The error message for a text given to a speech model."""


def read_prompt(prompt: str) -> str:
    """Return the prompt, or standard input for `-`.

    Raises:
        ValueError: If it is empty or cannot be read.
    """
    text = read_text(prompt)
    if not text:
        raise ValueError("the prompt is empty; give at least one character")
    return text


_sampling = panel("Sampling")
_MAX_TOKENS = (
    "The maximum number of tokens to generate; 1k is 1,024. Default: {}, or fewer if the context is full earlier."
)


@dataclass(frozen=True, slots=True)
class BasicSamplingFlags:
    """The sampling options that all commands have, each the field of SamplingParams with the same name.

    Options that are not given follow the model's generation_config.json.
    """

    USUAL_TOKENS: ClassVar[int] = 8
    """The maximum number of tokens without --max-tokens."""

    max_tokens: str | None = _sampling(_MAX_TOKENS.format(USUAL_TOKENS))
    temperature: float | None = _sampling(
        "The divisor of the logits: 0 always takes the most likely token, 1 samples from the model's distribution."
    )
    top_k: int | None = _sampling("Sample from the k most likely tokens only; 0 turns this off.")
    top_p: float | None = _sampling("Sample from the smallest set of tokens whose probabilities add up to this.")
    min_p: float | None = _sampling("Drop tokens whose probability is below this share of the most likely token's.")
    seed: int | None = _sampling(options.SEED_HELP)

    @property
    def most_tokens(self) -> int:
        """The maximum number of tokens to generate.

        Raises:
            ValueError: If --max-tokens is malformed.
        """
        return self.USUAL_TOKENS if self.max_tokens is None else parse_tokens(self.max_tokens, "--max-tokens")

    def given(self) -> dict[str, Any]:
        """Return the fields of SamplingParams that the user set, without `max_tokens`."""
        usual = {each.name: each.default for each in fields(self)}
        return {name: value for name, value in option_values(self, "max_tokens").items() if value != usual[name]}

    def params(self, defaults: SamplingParams, **more: Any) -> SamplingParams:
        """Return the model's sampling defaults changed by these options and `more`."""
        return replace(defaults, max_tokens=self.most_tokens, **self.given(), **more)


@dataclass(frozen=True, slots=True)
class SamplingFlags(BasicSamplingFlags):
    """The sampling options of commands that generate text."""

    USUAL_TOKENS: ClassVar[int] = 256

    max_tokens: str | None = _sampling(_MAX_TOKENS.format(USUAL_TOKENS))
    repetition_penalty: float | None = _sampling(
        "Values above 1 make tokens less likely that are already in the prompt or the text."
    )
    frequency_penalty: float | None = _sampling(
        "A penalty subtracted from a token's logit for each time it has been generated."
    )
    presence_penalty: float | None = _sampling(
        "A penalty subtracted from a token's logit if it has been generated at all."
    )
    stop: list[str] | None = _sampling("A string that ends the text; repeatable.")
    min_tokens: int = _sampling("Do not end the text before this number of tokens.", default=0)
    ignore_eos: bool = _sampling("Keep generating after the end-of-sequence token.", default=False)


def load(model: ModelSource | str, settings: EngineSettings, *, dummy_weights: bool, threads: int | None) -> LLM:
    """Load a model into an engine with a progress bar, and warm it up if a GPU captures its steps.

    A model without a tokenizer (under --dummy-weights) counts bytes as tokens, which is reported.
    """
    source = as_source(model)
    with loading_bar(source.name) as progress:
        llm = LLM(source, settings, dummy_weights=dummy_weights, threads=threads, progress=progress)
    say_definition(llm.loaded.definition)
    say_warnings(llm.loaded.warnings)
    if isinstance(llm.tokenizer, ByteTokenizer):
        say("the model has no tokenizer, so each byte of the prompt is a token")
    captured = llm.loaded.on_gpu and priced_backend("gpu").replayed_steps(llm.loaded.model) is not None
    if captured:  # otherwise the first response would include compilation
        with status("compiling kernels for the GPU"):
            warm_up(llm.engine)
    return llm


def image_generation_warning(model: ModelSource | str) -> str:
    """Return a warning for a language model that also generates images, otherwise ""."""
    source = as_source(model)
    if not generates_image_tokens(source):
        return ""
    return (
        f"{source.name} also generates images (ridgeline image); if it was trained only for images, its text is "
        "meaningless"
    )


def report_ignored_config(llm: LLM) -> None:
    """Report settings of the model's generation_config.json that are not supported."""
    for key in llm.loaded.text_processor.ignored_keys:
        say(f"the model's generation_config.json sets {key}, which this version does not support")


def prompt_ids(llm: LLM, text: str, system: str | None, raw: bool) -> list[int]:
    """Return the token ids of a text, as a chat message if the model has a chat template and `raw` is false.

    Raises:
        ValueError: If the model reads audio, or --system is given without a chat template or with `raw`.
    """
    if llm.loaded.model.encoder_width:
        raise ValueError(SPEECH_MODEL_ERROR)
    if raw or llm.loaded.templates is None:
        if system is not None:
            raise ValueError(
                "--system needs a chat template, but this model has none or --raw is given; leave out --system"
            )
        return llm.encode(text)
    messages = [{"role": "system", "content": system}] if system is not None else []
    return llm.encode_chat([*messages, {"role": "user", "content": text}])


def check_room(
    llm: LLM, ids: Sequence[int], params: SamplingParams, more_memory: str = "", config: Fields | None = None
) -> None:
    """Raise ValueError if --max-tokens exceeds what can follow the prompt, as vLLM's server does.

    The engine itself refuses a prompt that is too long.

    Args:
        llm: The engine.
        ids: The token ids of the prompt.
        params: The sampling parameters, including the maximum number of tokens.
        more_memory: The option that increases the KV memory, for the message; "" for none.
        config: The config of the model, for a message with the --rope that would suffice; None for a command without
            this option.
    """
    prompt = len(llm.loaded.text_processor.decoder_prompt(ids))
    wanted, context, held = params.max_tokens, llm.engine.traits.context, llm.engine.kv_cache_manager.capacity()
    assert wanted is not None
    room = min(context, held) - prompt
    if 0 < room < wanted:
        limit = f"the model's context is {context:,}" if context <= held else f"KV memory holds {held:,}"
        more = f", or raise {more_memory}" if more_memory and held < context else ""
        if config is not None and context == llm.loaded.model.context <= held:
            more = offer_longer_context(config, prompt + wanted)
        raise ValueError(
            f"{prompt:,} tokens of prompt and {wanted:,} of --max-tokens are {prompt + wanted:,}; {limit}; "
            f"give --max-tokens {room} or less{more}"
        )
