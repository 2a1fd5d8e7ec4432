"""`ridgeline trace` traces one request op by op, with predicted and measured times, or predicted times alone."""

import dataclasses
import json
from functools import partial

from ridgeline.cli import options
from ridgeline.cli.console import print_json, say, status
from ridgeline.cli.flags import given_flags, with_flags
from ridgeline.cli.options import device_at, device_named
from ridgeline.cli.text_request import check_room, image_generation_warning, load, prompt_ids, read_prompt
from ridgeline.cli.trace_options import (
    TraceFlags,
    chosen_layer,
    clock_of,
    refuse_image_options,
    refuse_text_options,
    traced_on,
)
from ridgeline.core.checkpoint.source import ModelSource, open_source
from ridgeline.core.models.common.parameter_breakdown import layers_of
from ridgeline.engine import EngineSettings
from ridgeline.engine.scheduler import Limits
from ridgeline.insight.trace.request_trace import TraceSubject, check
from ridgeline.insight.trace.request_trace import trace as trace_request
from ridgeline.insight.trace.views.ledger_roofline import ledger_roofline
from ridgeline.insight.trace.views.perfetto import to_perfetto
from ridgeline.insight.trace.views.priced_report import WIDTH as PRICED_WIDTH
from ridgeline.insight.trace.views.priced_report import priced_document, priced_json
from ridgeline.insight.trace.views.report import WIDTH, ReportOptions, build_report
from ridgeline.insight.trace.views.trace_export import to_csv, to_json
from ridgeline.insight.trace.views.trace_summary import summary as summary_of
from ridgeline.util.document.terminal_renderer import show

# A trace shows a single prefill, so one request runs at a time and a step must hold its whole prompt.
_SETTINGS = EngineSettings(limits=Limits(tokens=1 << 18, requests=1), prefix_cache=False)


@with_flags
def trace(
    model: options.ModelName,
    prompt: options.PromptText = None,
    device: options.DeviceName = "this",
    *,
    flags: TraceFlags,
) -> None:
    """Trace one request through the model, op by op, with predicted and measured times.

    Shows the text, the token ids, every op with its bound, expected and measured time, the candidate tokens, and a
    summary of where the time went. For a diffusion pipeline it shows the text encoders, one denoising step and the
    decoder.

    The prefill and the first decode step are measured, each op by itself. Tracing does not change the tokens.

    With --priced DEVICE nothing runs: the time of every op is predicted, for any model and any device.
    """
    if flags.priced.priced is not None:
        given = [*["a prompt"] * (prompt is not None), *given_flags(flags.look), *given_flags(flags.files)]
        given += ["--device"] * (device != "this") + ["--summary"] * flags.summary
        given += [*given_flags(flags.diffusion), *given_flags(flags.sampling), *given_flags(flags.running, "lora")]
        if given:
            raise ValueError(f"--priced runs no model, but {given[0]} is for a model that runs; leave it out")
        made = flags.priced.trace(model, flags.running.lora)
        print_json(priced_json(made)) if flags.as_json else show(priced_document(made), PRICED_WIDTH)
        return
    flags.priced.check()
    if prompt is None:
        instead = "--priced DEVICE" if device == "this" else f"--priced {device} instead of --device"
        raise ValueError(
            f"PROMPT is missing; give the text to trace, or {instead} to predict the model without running it"
        )
    flags.files.check()
    if flags.summary:
        flags.check_summary()
    text = read_prompt(prompt)
    source = open_source(model)
    if source.pipeline:
        from ridgeline.cli.trace_diffusion import show_diffusion_trace  # not imported for a language model

        refuse_text_options(model, ["--summary"] * flags.summary)
        show_diffusion_trace(model, text, device, flags)
        return
    refuse_image_options(model, given_flags(flags.diffusion))
    _show_written(source, text, device, flags)


def _show_written(source: ModelSource, prompt: str, device: str, flags: TraceFlags) -> None:
    """Trace the output of a language model and show the trace.

    Args:
        source: The model.
        prompt: The prompt.
        device: The device to price steps on, and to run on if it is a GPU of this machine.
        flags: The further options.

    Raises:
        ValueError: If options are invalid or cannot be combined.
    """
    look, running, sampling = flags.look, flags.running, flags.sampling
    adapters = options.adapter_of(running.lora, "request", "--priced DEVICE")
    if adapters and look.memory:
        raise ValueError("--memory shows the neurons of the model without adapters; leave out --lora or --memory")
    dummy, place = running.dummy_weights, traced_on(device)
    inside = given_flags(look, "layer")
    if place.type != "cpu" and inside:
        raise ValueError(f"{inside[0]} works only on the CPU; leave out {inside[0]} or --device {device}")
    if running.tensor_parallel > 1 and inside:
        raise ValueError(f"{inside[0]} needs the whole model, but --tensor-parallel divides it; leave one of them out")
    on = "cpu" if place.type == "cpu" else device
    weights, kv, ranks = flags.priced.weights, flags.priced.kv, running.tensor_parallel
    settings = dataclasses.replace(_SETTINGS, adapters=adapters, weights=weights, kv=kv, ranks=ranks, device=on)
    llm = load(source, settings, dummy_weights=dummy, threads=running.threads)
    layer, wanted = chosen_layer(look.layer, layers_of(llm.loaded.model)[-1]), look.wanted(running.repeats)
    params = sampling.params(llm.loaded.defaults, ignore_eos=dummy)
    name, encode_prompt = source.title, partial(prompt_ids, llm, prompt, running.system, running.raw)
    subject = TraceSubject(name, prompt, encode_prompt, next(iter(adapters), ""))
    ids = subject.encode()
    if sampling.max_tokens is not None:
        check_room(llm, ids, params)
    check(llm, ids, wanted)  # before probing the machine
    with status("tracing"):
        priced_device = device_named(device, llm.threads) if place.type == "cpu" else device_at(place)
        priced_device, at_hand = llm.loaded.with_interconnect(priced_device), device == "this" or place.type != "cpu"
        ledger = trace_request(
            llm, subject, params, priced_device, wanted, at_hand=at_hand, threads=llm.threads, clock=clock_of(place)
        )
    flags.files.write(
        csv=lambda: to_csv(ledger),
        perfetto=lambda: json.dumps(to_perfetto(ledger)),
        roofline=lambda: ledger_roofline(ledger),
    )
    if flags.as_json:
        print_json(to_json(ledger))
    elif flags.summary:
        show(summary_of(ledger))
    else:
        show(build_report(ledger, ReportOptions(layer, flags.files.roofline is not None)), WIDTH)
    if warning := image_generation_warning(source):
        say(warning)
