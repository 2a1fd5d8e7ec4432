"""`ridgeline image` for a model that generates images token by token, like text."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import typer

from ridgeline.cli.console import counting_bar, loading_bar, print_json, say
from ridgeline.cli.image_files import MediaFile, Medium, check_media_outputs, numbered
from ridgeline.cli.image_forecast import describe_device, measured_lines
from ridgeline.cli.interrupt import interruptible
from ridgeline.cli.media_flags import MediaRunFlags
from ridgeline.cli.options import device_at
from ridgeline.cli.process_setup import INTERRUPTED
from ridgeline.core.checkpoint import ModelSource
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.insight.trace.interference import Interference
from ridgeline.media.diffusion.diffusion_request import DiffusionRequest
from ridgeline.media.images.image_generator import (
    STAGES,
    TokenForecast,
    TokenImageGenerator,
    TokenPlan,
    load_image_generator,
)
from ridgeline.price.interval_text import describe_interval
from ridgeline.util.document.humanize import say_seconds, three_digits
from ridgeline.util.host import threads_for
from ridgeline.util.json_data import json_select


def draw_tokens(source: ModelSource, medium: Medium, request: DiffusionRequest, run: MediaRunFlags) -> None:
    """Generate the images of a request as tokens, into files. Only its prompt, number of images and seed count.

    Raises:
        ValueError: If a file cannot be written or the model cannot be loaded.
    """
    if run.output is not None:
        check_media_outputs(numbered(run.output, request.images), medium, force=run.force)
    with loading_bar(source.name) as progress:
        generator = load_image_generator(source, EngineSettings(device=run.device), progress=progress)
    torch.set_num_threads(threads_for(generator.loaded.weight_bytes, run.threads))
    plan = generator.plan(request.prompt, request.images, request.seed)
    paths = numbered(run.output or Path(f"{Path(source.name).name}-{plan.seed}{medium.suffix}"), request.images)
    check_media_outputs(paths, medium, force=run.force)
    forecast = generator.forecast(plan, device_at(run.place))
    for line in plan_lines(source, generator, plan, forecast):
        say(line)
    kept = {"prompt": request.prompt, "model": source.name, "tokens": plan.tokens}
    files = [medium.make(path, {**kept, "seed": plan.seed + image}) for image, path in enumerate(paths)]
    meanwhile = Interference()
    measured = _draw(generator, plan, files, meanwhile, as_json=run.as_json)
    # The prefill is measured together with the generation of tokens.
    expected, both = forecast.seconds, "encode, tokens"
    predicted = {both: expected["encode"] + expected["tokens"], "decode": expected["decode"]}
    taken = {both: measured["tokens"], "decode": measured["decode"]}
    for line in measured_lines(predicted, taken, forecast.device, meanwhile):
        say(line)
    if run.as_json:
        print_json({"files": [str(path) for path in paths], **plan_json(plan, forecast, measured)})


def plan_lines(
    source: ModelSource, generator: TokenImageGenerator, plan: TokenPlan, forecast: TokenForecast
) -> Iterator[str]:
    """Yield lines that describe a request to a model that generates images as tokens, not by diffusion.

    They state the image size, the forward passes, FLOPs and bytes, and the predicted seconds.
    """
    side, one = generator.pixels, plan.images == 1
    seeds = f"seed {plan.seed}" if one else f"seeds {plan.seed} to {plan.seed + plan.images - 1}"
    yield f"{source.name}: {'one image' if one else f'{plan.images} images'} of {side}x{side} pixels, {seeds}"
    yield f"{plan.tokens} tokens per image, one per pass = {plan.tokens} passes; prompt tokens: {len(plan.prompt)}"
    flops, moved = three_digits(forecast.cost.total_flops / 1e9), three_digits(forecast.cost.memory_bytes / 1e9)
    yield f"{flops} GFLOP and {moved} GB of weights and KV in total; no guidance"
    stages = ", ".join(f"{name} {say_seconds(forecast.seconds[name])}" for name in STAGES)
    yield f"predicted: {stages} on {describe_device(forecast.device)}"
    yield describe_interval("all stages", forecast.interval, sum(forecast.seconds.values()))


def plan_json(plan: TokenPlan, forecast: TokenForecast, measured: Mapping[str, float]) -> dict[str, Any]:
    """Return a request with its predicted and measured seconds as JSON fields."""
    return {
        **json_select(plan, "seed", "tokens"),
        "text_tokens": len(plan.prompt),
        "passes": plan.tokens,
        **json_select(forecast, "flops=cost.total_flops", "bytes=cost.memory_bytes", "predicted=seconds"),
        "predicted_interval": forecast.interval.around_time(sum(forecast.seconds.values())),
        "measured": dict(measured),
    }


def _draw(
    generator: TokenImageGenerator, plan: TokenPlan, files: list[MediaFile], meanwhile: Interference, *, as_json: bool
) -> dict[str, float]:
    """Generate the tokens and write each image as soon as it is complete; return the seconds of both stages.

    Raises:
        typer.Exit: If the user interrupted the command.
    """
    measured = dict.fromkeys(("tokens", "decode"), 0.0)
    steps, written = generator.draw(plan), list[Path]()
    with interruptible() as interrupt, counting_bar("token", plan.images * plan.tokens) as on_token:
        while True:
            with meanwhile.recording():
                start = perf_counter()
                drawn = next(steps, None)
                measured["tokens"] += perf_counter() - start
            if drawn is None:
                return measured
            on_token(drawn.tokens)
            for image, tokens in drawn.finished.items():
                with meanwhile.recording():
                    start = perf_counter()
                    files[image].write([generator.decode(tokens)])
                    measured["decode"] += perf_counter() - start
                written.append(files[image].path)
                if not as_json:
                    print(files[image].path, flush=True)
            if interrupt.requested and len(written) < plan.images:
                steps.close()
                there = f"; finished: {', '.join(map(str, written))}" if written else ""
                say(f"stopped after {drawn.tokens:,} of {plan.images * plan.tokens:,} tokens{there}")
                raise typer.Exit(INTERRUPTED)
