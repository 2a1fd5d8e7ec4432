"""The engine options of commands, and the construction of an engine from them.

The engine is imported only when it is needed: `bench serve` shares a group with `bench engine` but needs no engine.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from ridgeline.cli import options
from ridgeline.cli.console import loading_bar, say, say_warnings
from ridgeline.cli.flags import build_from, panel
from ridgeline.cli.options import parse_bytes, parse_tokens
from ridgeline.core.text.reasoning_format import REASONING_NAMES

if TYPE_CHECKING:
    from ridgeline.core.checkpoint import ModelSource
    from ridgeline.core.ops.number_formats import NumberFormat
    from ridgeline.engine import LLM, EngineSettings
    from ridgeline.engine.scheduler import Limits
    from ridgeline.engine.speculation.config import Speculation
    from ridgeline.price.device import Device

_engine, _text = panel("Engine"), panel("Text")


@dataclass(frozen=True, slots=True)
class EngineFlags:
    """The engine options of every command that runs a model."""

    dummy_weights: options.DummyWeights = False
    weights: options.RunWeights = None
    dtype: str = _engine(
        "auto, or the model's own dtype (half, float16, bfloat16, float, float32); a model runs in no other dtype.",
        default="auto",
    )
    context: options.Context = None
    kv_memory: str | None = _engine(
        "The memory for the KV cache, like 512MiB. Default: half of the free memory and at most 4GiB; on a GPU what "
        "--memory-share leaves."
    )
    memory_share: float | None = _engine(
        "The share of the available memory for weights, activations and KV cache together, instead of --kv-memory. On "
        "a GPU it is the share of its total memory, 0.9 by default, like vLLM's --gpu-memory-utilization."
    )
    kv: options.RunKV = None
    max_batch_tokens: options.MaxBatchTokens = "2k"
    max_requests: options.MaxRequests = 256
    chunk: options.Chunk = None
    page_size: options.PageSize = 16
    threads: options.Threads = None
    device: options.RunDevice = "cpu"
    enforce_eager: bool = _engine(
        "Launch every op of each step from Python: no recorded steps and no CUDA graphs.", default=False
    )
    tensor_parallel: options.TensorParallel = 1

    def settings(self, model: "ModelSource | str", **more: Any) -> "EngineSettings":
        """Return the engine settings for a model, with `more` fields of EngineSettings.

        Raises:
            ValueError: If an option is invalid, or --dtype differs from the model's own dtype.
        """
        from ridgeline.core.checkpoint.source import as_source
        from ridgeline.core.models.building import stored_dtype
        from ridgeline.core.ops.number_formats import format_of
        from ridgeline.engine import EngineSettings

        source = as_source(model)
        stored = format_of(stored_dtype(source.config))
        _check_format("--dtype", self.dtype, stored, f"{source.name} runs in {stored.long}, and in no other dtype")
        return build_from(
            self,
            EngineSettings,
            kv_bytes=None if self.kv_memory is None else parse_bytes(self.kv_memory, "--kv-memory"),
            context=None if self.context is None else parse_tokens(self.context, "--context"),
            limits=step_limits(self.max_batch_tokens, self.max_requests, self.chunk),
            eager=self.enforce_eager,
            ranks=self.tensor_parallel,
            **more,
        )

    def load(self, model: "ModelSource | str", **more: Any) -> "LLM":
        """Load a model into an engine, with a progress bar on stderr; `more` is passed to `settings`."""
        from ridgeline.core.checkpoint.source import as_source
        from ridgeline.engine import LLM

        source = as_source(model)
        settings = self.settings(source, **more)
        with loading_bar(source.name) as progress:
            llm = LLM(source, settings, dummy_weights=self.dummy_weights, threads=self.threads, progress=progress)
        say_warnings(llm.loaded.warnings)
        return llm


@dataclass(frozen=True, slots=True)
class SpeculationFlags(EngineFlags):
    """The engine options with those of speculative decoding and long contexts, for commands that generate text."""

    rope: options.RunRope = None
    speculate: str | None = _engine(
        "Use speculative decoding, which gives the same text in fewer steps: ngram looks up the last tokens in the "
        "request, auto does so if it is predicted to be faster, the name of a smaller model makes it the draft model.",
        metavar="ngram|auto|MODEL",
    )
    speculate_tokens: int | None = _engine("The maximum number of draft tokens of a request per step; 4 by default.")
    speculative_config: str | None = _engine(
        'vLLM\'s option, in JSON: {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 5, '
        '"prompt_lookup_min": 2}, or {"model": NAME, "num_speculative_tokens": 4}.',
        "--speculative-config",
        "-sc",
        metavar="JSON",
    )

    @override
    def settings(self, model: "ModelSource | str", **more: Any) -> "EngineSettings":
        return EngineFlags.settings(self, model, speculation=self._speculation(), **more)

    @override
    def load(self, model: "ModelSource | str", **more: Any) -> "LLM":
        return with_price(EngineFlags.load(self, model, **more))

    def _speculation(self) -> "Speculation | None":
        from ridgeline.engine.speculation.config import from_vllm_json, named

        if self.speculative_config is not None:
            if self.speculate is not None or self.speculate_tokens is not None:
                raise ValueError("--speculative-config and --speculate set the same thing; give one of them")
            return from_vllm_json(self.speculative_config)
        if self.speculate is None:
            if self.speculate_tokens is not None:
                raise ValueError("--speculate-tokens needs --speculate; give that too, like --speculate ngram")
            return None
        return named(self.speculate, self.speculate_tokens)


def step_limits(max_batch_tokens: str, max_requests: int, chunk: str | None) -> "Limits":
    """Return the limits of an engine step from the values of the options of these names.

    Raises:
        ValueError: If a value is malformed.
    """
    from ridgeline.engine.scheduler import Limits

    most = None if chunk is None else parse_tokens(chunk, "--chunk")
    return Limits(parse_tokens(max_batch_tokens, "--max-batch-tokens"), max_requests, most)


def known_device(device: "Device | None") -> "Device":
    """Return the device on which steps are priced.

    Raises:
        ValueError: If the device is None, because the GPU is not calibrated.
    """
    if device is None:
        raise ValueError(
            "--speculate auto needs predicted step times; run `ridgeline calibrate --device cuda` once, or give "
            "--speculate ngram"
        )
    return device


def with_price(llm: "LLM") -> "LLM":
    """Return the engine, with predicted step times if its speculative decoding depends on them.

    Raises:
        ValueError: If they are needed and the GPU is not calibrated.
    """
    speculator = llm.engine.speculator
    if speculator is not None and speculator.priced:
        device = known_device(options.calibrated_device(llm.loaded.device, llm.threads))
        speculator.price_on(llm.loaded.price, llm.loaded.with_interconnect(device))
    return llm


@dataclass(frozen=True, slots=True)
class TextFlags(SpeculationFlags):
    """The engine options of commands whose prompts are texts."""

    prefix_cache: bool | None = _engine(
        "Share the KV pages of requests with equal prefixes; on by default if the model's layers allow it. In fp32 "
        "the text of a seed is the same with and without. In bf16 and fp16 at least the last two tokens of a prompt "
        "run again, in smaller batches: rounding, and so the text, rarely differs."
    )
    chat_template: Path | None = _text(
        "A Jinja chat template to use instead of the model's own.", metavar="FILE", dir_okay=False
    )
    reasoning_parser: str | None = _text(
        f"The format of the model's reasoning: {', '.join(REASONING_NAMES)}. Default: read from its chat template."
    )

    @override
    def settings(self, model: "ModelSource | str", **more: Any) -> "EngineSettings":
        return SpeculationFlags.settings(
            self,
            model,
            prefix_cache=self.prefix_cache is not False,
            chat_template=None if self.chat_template is None else str(self.chat_template),
            reasoning=_checked_reasoning(self.reasoning_parser),
            **more,
        )

    @override
    def load(self, model: "ModelSource | str", **more: Any) -> "LLM":
        """Load a model with the `load` of text_request.py, which also warms up a GPU."""
        from ridgeline.cli.text_request import load
        from ridgeline.core.checkpoint.source import as_source

        source = as_source(model)
        settings = self.settings(source, **more)
        llm = load(source, settings, dummy_weights=self.dummy_weights, threads=self.threads)
        if self.prefix_cache and (why := llm.loaded.layout.why_no_prefix_cache):
            say(f"--prefix-cache has no effect for this model: {why}")
        return with_price(llm)


def _checked_reasoning(parser: str | None) -> str | None:
    """Return the name of a format of reasoning after a check."""
    if parser is not None and parser not in REASONING_NAMES:
        raise ValueError(f"--reasoning-parser is {parser!r}; give one of {', '.join(REASONING_NAMES)}")
    return parser


def _check_format(option: str, requested: str, stored: "NumberFormat", why: str) -> None:
    """Raise ValueError for a number format that is not the model's own."""
    if requested != "auto" and not stored.is_called(requested):
        raise ValueError(f"{option} is {requested!r}; {why}: give auto")
