"""`ridgeline run` generates text for a prompt, streams it and reports the time that it took."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli import options
from ridgeline.cli.batch_options import BatchFlags
from ridgeline.cli.console import ResponsePrinter, clean, print_json, say, silence
from ridgeline.cli.engine_flags import TextFlags
from ridgeline.cli.flags import given_flags, option, with_flags
from ridgeline.cli.missing_kernels import warn_missing_kernels
from ridgeline.cli.options import calibrated_device, why_uncalibrated
from ridgeline.cli.text_request import (
    SamplingFlags,
    check_room,
    image_generation_warning,
    prompt_ids,
    read_prompt,
    report_ignored_config,
)
from ridgeline.core.checkpoint import ModelSource, open_source
from ridgeline.core.checkpoint.load_report import LoadReport, time_buffered_read
from ridgeline.core.text import Tokenizer
from ridgeline.engine import LLM, Completion, SamplingParams
from ridgeline.engine.encoder_features import EncoderFeatures
from ridgeline.engine.result import Choice
from ridgeline.engine.sampling.sample_row import Sampled
from ridgeline.insight.trace.run_stats import PhaseThroughput, RunStats, verdict
from ridgeline.price.cold_start import cold_start, disks
from ridgeline.price.devices import load_device
from ridgeline.util.document.humanize import gb, say_gb, say_seconds, three_digits
from ridgeline.util.json_data import json_select

if TYPE_CHECKING:
    from ridgeline.cli.image_prompt import ImagePrompt

_READ = 1 << 30
"""The most bytes of a checkpoint to read from the page cache to measure the read speed; little next to a run."""

_EXAMPLE_GPU = "h100-sxm"


@dataclass(frozen=True, slots=True)
class PromptFlags:
    """The options for a single prompt."""

    n: int = option("The number of completions of the prompt.", "-n", "--n", default=1)
    logprobs: int | None = option(
        "With --json: report the log-probability of each token and of this number of alternatives, raw and processed."
    )
    raw: options.Raw = False
    system: options.System = None
    image: list[Path] | None = option(
        "An image for the prompt, for models that read images; give several, or repeat the option.",
        metavar="FILE",
        show_default=False,
    )


Quiet = Annotated[bool, typer.Option("--quiet", help="Print the text only; stderr has nothing but errors.")]
Verbose = Annotated[
    bool,
    typer.Option("--verbose", help="Also report what loading took, and what the speed would be with other settings."),
]


@with_flags
def run(
    model: options.ModelName,
    prompt: options.PromptText = None,
    *,
    batch: BatchFlags,
    sampling: SamplingFlags,
    single: PromptFlags,
    lora: options.Lora = None,
    engine: TextFlags,
    as_json: options.Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Generate text: writes it to stdout, and the time of prefill and decode to stderr.

    Sampling follows the model's generation_config.json unless options say otherwise. With --input-file, the requests
    come from a file in OpenAI's batch format, each with its own sampling parameters, and the responses go to another
    file. Exit code 0 then means that every line was answered or refused; the last line on stderr counts both.
    """
    with silence(quiet):
        if batch.input_file is not None:
            given = [*given_flags(sampling), *given_flags(single), *["--json"] * as_json, *["--verbose"] * verbose]
            for each in [*given, *["prompt"] * (prompt is not None)]:
                raise ValueError(
                    f"{each} is for a single prompt; leave it out and state it in each line of --input-file"
                )
            from ridgeline.cli.batch_run import run_batch  # a single prompt does not need the server's imports

            run_batch(model, engine, batch, options.adapters_of(lora, "--lora"))
            return
        if batch.on_ray:
            raise ValueError("--replicas and --ray-address apply only to --input-file; leave them out")
        if prompt is None or given_flags(batch):
            raise ValueError("give a prompt (- reads standard input), or --input-file with a file of requests")
        if quiet and verbose:
            raise ValueError("--quiet and --verbose contradict each other; give one of them")
        text = read_prompt(prompt)
        if single.logprobs is not None and not as_json:
            raise ValueError("--logprobs needs --json; give both")
        adapters = options.adapter_of(lora, "prompt", "--input-file")
        source = open_source(model)
        images = _images(source, single.image) if single.image else None
        llm = engine.load(source, adapters=adapters)
        params = sampling.params(llm.loaded.defaults, n=single.n, logprobs=single.logprobs)
        params = replace(params, ignore_eos=params.ignore_eos or engine.dummy_weights)
        system, raw = single.system, single.raw
        ids = prompt_ids(llm, text, system, raw) if images is None else images.ids(llm, text, system, raw=raw)
        if sampling.max_tokens is not None:
            check_room(llm, ids, params, "--kv-memory", source.with_rope(engine.rope).config)
        _say_loaded(llm, verbose=verbose)
        shown = not as_json and not engine.dummy_weights
        account = _account(llm)
        features = None if images is None else images.features(llm)
        completion = _generate(llm, ids, params, next(iter(adapters), ""), features, shown=shown)
        if as_json:
            names = llm.tokenizer if single.logprobs is not None else None
            print_json(_completion_json(completion, account, names) | _speculation_json(llm))
        elif not quiet:
            _say_account(llm, completion, account, meaningless=engine.dummy_weights)
        if warning := image_generation_warning(source):
            say(warning)


def _say_loaded(llm: LLM, *, verbose: bool) -> None:
    """Report unsupported settings of the model's files, and with `verbose` the loading times."""
    report_ignored_config(llm)
    if verbose:
        for line in _loading_lines(llm.loaded.loading):
            say(line)


def _account(llm: LLM) -> RunStats:
    """Return the statistics of all steps that the engine runs from now on."""
    account = RunStats(llm.loaded.price)
    llm.engine.on_step = account.add
    return account


def _images(source: ModelSource, paths: list[Path]) -> "ImagePrompt":
    """Read the image files that --image adds to the prompt."""
    from ridgeline.cli.image_prompt import ImagePrompt  # imports Pillow, which few prompts need

    return ImagePrompt.read(source, paths)


def _generate(
    llm: LLM, ids: list[int], params: SamplingParams, adapter: str, images: EncoderFeatures | None, *, shown: bool
) -> Completion:
    """Run the request; stream its first choice and print further ones when they are complete.

    Raises:
        ValueError: If all choices failed.
    """
    completion, printer = Completion.empty(ids, params.n), ResponsePrinter()
    for event in llm.stream(ids, params, adapter=adapter, images=images):
        completion.take([event])
        if shown and event.choice == 0:
            printer.show(event.text, event.reasoning)
    if shown:
        printer.end()
        for choice in completion.choices[1:]:
            print(f"\n--- {choice.index + 1} of {params.n} ---\n{clean(choice.text)}")
    failed = [choice.error for choice in completion.choices if choice.error is not None]
    if len(failed) == len(completion.choices):
        raise ValueError(f"the request failed: {failed[0]}")
    return completion


def _say_account(llm: LLM, completion: Completion, account: RunStats, *, meaningless: bool) -> None:
    """Report the times of prefill and decode, what limited them, the engine's configuration and missing kernels."""
    if meaningless:
        count = sum(len(choice.tokens) for choice in completion.choices)
        say(f"the weights are random: {count} meaningless tokens were generated")
    device = calibrated_device(llm.loaded.device, llm.threads)
    limits = () if device is None else verdict(account, device)
    for line in (*_account_lines(account), *limits):
        say(line)
    if llm.engine.speculator is not None:
        say(llm.engine.stats.guessed() or "speculation: no tokens were drafted")
    if device is None:
        say(f"what limits the speed is unknown: {why_uncalibrated(llm.loaded.device)}", style="dim")
    if llm.loaded.price.devices > 1:
        say(f"{llm.loaded.price.devices} ranks: bytes and FLOPs are per rank", style="dim")
    for adapter in llm.loaded.adapters:
        say(adapter.describe(llm.loaded.model.storage.dtype.itemsize), style="dim")
    layout = llm.loaded.layout.describe(llm.engine.traits.context, llm.engine.traits.encoder_context)
    say(f"{layout}; {llm.threads} thread{'s' if llm.threads > 1 else ''}", style="dim")
    warn_missing_kernels()


def _account_lines(account: RunStats) -> list[str]:
    """Return tokens, seconds, tokens per second, bandwidth and FLOP/s of prefill and of decode."""
    phases = {"prefill": account.prefill, "decode": account.decode}
    return [_phase_line(name, phase) for name, phase in phases.items() if phase.steps]


def _phase_line(name: str, phase: PhaseThroughput) -> str:
    return (
        f"{name:8}{phase.tokens:7,} tokens {phase.seconds:8.3f} s {phase.tokens_per_second:9.1f} tok/s "
        f"{phase.bytes_per_second / 1e9:8.2f} GB/s {phase.flops_per_second / 1e9:9.1f} GFLOP/s"
    )


def _completion_json(completion: Completion, account: RunStats, names: Tokenizer | None) -> dict[str, Any]:
    """Return the completion as JSON fields, those of the first choice at the top level.

    Several choices are also listed under `choices`.

    Args:
        completion: The completion.
        account: The times of its steps.
        names: The tokenizer that spells tokens with log-probabilities; None omits those.
    """
    choices = [_choice_json(choice, names) for choice in completion.choices]
    fields = {
        **choices[0],
        "prompt_tokens": len(completion.prompt_ids),
        "timing": json_select(account, "prefill", "decode"),
    }
    return fields | ({"choices": choices} if len(choices) > 1 else {})


def _speculation_json(llm: LLM) -> dict[str, Any]:
    """Return the counts of drafted and accepted tokens, or nothing without speculative decoding."""
    if llm.engine.speculator is None:
        return {}
    return {"speculation": json_select(llm.engine.stats, "drafts", "draft_tokens", "accepted_tokens")}


def _choice_json(choice: Choice, names: Tokenizer | None) -> dict[str, Any]:
    reasoning = ("reasoning", "reasoning_tokens") if choice.reasoning_tokens else ()
    fields = json_select(choice, "text", "token_ids", "finish_reason=finish", *reasoning, "?error")
    if names is not None:
        fields["logprobs"] = [_logprob_json(sampled, names) for sampled in choice.tokens]
    return fields


def _logprob_json(sampled: Sampled, names: Tokenizer) -> dict[str, Any]:
    """Return a token and its alternatives with their texts.

    Part of a character becomes U+FFFD, and a control token keeps its spelling.
    """

    def entry(token: int, logprob: float | None) -> dict[str, Any]:
        text = names.token_bytes(token, skip_special=False).decode("utf-8", "replace")
        return {"token": token, "text": text, "logprob": logprob}

    return {
        **entry(sampled.token, sampled.logprob),
        "logprob_raw": sampled.logprob_raw,
        "top": [entry(*pair) for pair in sampled.top],
        "top_raw": [entry(*pair) for pair in sampled.top_raw],
    }


def _loading_lines(loading: LoadReport | None) -> Iterator[str]:
    """Yield the lines of `--verbose` about loading: its time, and estimates for memory, disks and a GPU.

    The second line takes a measurement that reads a part of the checkpoint again.

    Args:
        loading: The report of the loader; None for random weights.
    """
    if loading is None:
        yield "loading: nothing was read, because the weights are random"
        return
    yield _measured(loading)
    reading = time_buffered_read(loading.checkpoint, _READ)
    if reading.nbytes:
        whole = loading.nbytes / reading.speed
        yield (
            f"for comparison, reading {say_gb(gb(reading.nbytes))} into fresh memory from the page cache: "
            f"{_speed(reading.speed)}, so {say_seconds(whole)} for the whole model, x "
            f"{three_digits(whole / loading.seconds)}"
        )
    yield _priced(loading.nbytes)


def _measured(loading: LoadReport) -> str:
    found, entries = loading.checkpoint.files, len(loading.checkpoint.entries)
    files = len(set(found.values()))
    disk = "" if loading.from_disk is None else f"; {say_gb(gb(loading.from_disk))} came from the disk"
    how = "read and quantized" if loading.quantised else "mapped, with every page read"
    return (
        f"loading: {entries:,} tensors of {files:,} file{'s' * (files > 1)}, headers {say_seconds(loading.header)}; "
        f"{say_gb(gb(loading.nbytes))} {how}, {say_seconds(loading.mapped)}: {_speed(loading.speed)}{disk}"
    )


def _priced(nbytes: float) -> str:
    """Return the minimum cold-start times from each disk, and the time to copy the weights to a GPU."""
    gpu = load_device(_EXAMPLE_GPU)
    cold = ", ".join(
        f"{say_seconds(cold_start(nbytes, 0, disk).read)} from {disk.title} ({_speed(disk.bandwidth)})"
        for disk in disks()
    )
    assert gpu.host_link is not None
    return (
        f"minimum cold start: {cold}; copying to a GPU adds {say_seconds(nbytes / gpu.host_link)} ({gpu.title}, "
        f"{_speed(gpu.host_link)}) if the copy waits for the disk; other devices: plan --section loading"
    )


def _speed(bandwidth: float) -> str:
    return f"{three_digits(bandwidth / 1e9)} GB/s"
