"""Reader of scheduler_config.json: the sampler and the schedule that a pipeline was released with.

It reads only the options that are implemented. It refuses an option that would change the result, ignores by name an
option that changes nothing here, and refuses an unknown option.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ridgeline.core.models.common.fields import Fields
from ridgeline.media.diffusion.samplers import DiffusionSampler, LatentConsistency, dpmpp_2m, euler, renoise, unipc
from ridgeline.media.diffusion.schedules import (
    Betas,
    Schedule,
    Spacing,
    discrete_schedule,
    dpmpp_flow,
    euler_flow,
    lcm_schedule,
    trained_sigmas,
    unipc_flow,
)
from ridgeline.media.diffusion.timestep_call import TimestepCall

MAX_TRAIN_STEPS = 100_000

Shift = Callable[[int, int], float]
"""The factor by which noise levels are shifted, as a function of the latent's tokens and the steps."""


@dataclass(frozen=True, slots=True)
class DiffusionScheduler:
    """A diffusion sampler together with its schedules."""

    sampler: DiffusionSampler
    """The function that performs one sampling step."""
    most_steps: int
    """The maximum number of steps; with more, the denoiser could not tell their timesteps apart."""
    make: Callable[[int, int], Schedule]
    """The function from (steps, tokens of the latent) to a schedule."""

    def schedule(self, steps: int, tokens: int) -> Schedule:
        """Return the schedule of noise levels for a request.

        Raises:
            ValueError: If the number of steps is below 1 or above `most_steps`.
        """
        if not 1 <= steps <= self.most_steps:
            raise ValueError(f"the number of steps is {steps}; this model takes 1 to {self.most_steps}")
        return self.make(steps, tokens)


def read_scheduler(path: Path, call: TimestepCall, listed: str = "") -> DiffusionScheduler:
    """Return the sampler and the schedules of the scheduler_config.json at `path`.

    Args:
        path: The scheduler_config.json.
        call: Arguments with which the pipeline requests timesteps from its scheduler.
        listed: Class of the scheduler in model_index.json, or "" if unknown. diffusers reads the file as that class,
            whatever the file says.

    Raises:
        ModelRefused: If an option is not supported; one line names the file, the option and the supported values.
    """
    fields = Fields.read(path)
    if listed and not fields.has("_class_name"):
        fields = Fields({**fields.values, "_class_name": listed}, fields.source)
    scheduler = scheduler_of(fields, call)
    if listed and _name(fields) != listed:
        raise fields.refuse(
            f"_class_name is {_name(fields)}, but model_index.json lists a {listed}; write the right class into both"
        )
    return scheduler


def scheduler_of(fields: Fields, call: TimestepCall) -> DiffusionScheduler:
    """Return the sampler and the schedules of a parsed scheduler config; see `read_scheduler`."""
    name = fields.text("_class_name", "")
    if name not in READERS:
        raise fields.refuse(f"_class_name is {name or 'missing'}; supported are {', '.join(READERS)}")
    scheduler = READERS[name](fields, call)
    fields.ignore(*OPTIONS)
    if unread := fields.unread():
        raise fields.refuse(f"{unread[0]} is not a known option of {name}; remove it if it has no effect")
    return scheduler


def _euler(fields: Fields, call: TimestepCall) -> DiffusionScheduler:
    """Read a FlowMatchEulerDiscreteScheduler config."""
    return _flow_match(fields, call, renoise if fields.flag("stochastic_sampling", False) else euler)


def _flow_lcm(fields: Fields, call: TimestepCall) -> DiffusionScheduler:
    """Read a FlowMatchLCMScheduler config, which is the stochastic sampling of flow-match Euler under another name."""
    fields.require_off("scale_factors")
    return _flow_match(fields, call, renoise)


def _flow_match(fields: Fields, call: TimestepCall, step: DiffusionSampler) -> DiffusionScheduler:
    """Return the schedules of flow-match Euler, from the sigmas of the pipeline or else from the scheduler's own."""
    train_steps = _train_steps(fields)
    _refuse_other_sigmas(fields)
    for name in ("invert_sigmas", "shift_terminal"):
        fields.require_off(name)
    passed = call.passed_sigmas(fields)
    if fields.flag("use_dynamic_shifting", False):
        shift_of = _dynamic_shift(fields, call)

        def dynamic(steps: int, tokens: int) -> Schedule:
            sigmas_S = passed(steps) if passed else trained_sigmas(steps, 1.0, train_steps)
            return euler_flow(sigmas_S, shift_of(tokens, steps), train_steps, dynamic=True)

        return DiffusionScheduler(step, train_steps - 1, dynamic)
    shift = fields.positive("shift", 1.0)

    def static(steps: int, tokens: int) -> Schedule:
        sigmas_S = passed(steps) if passed else trained_sigmas(steps, shift, train_steps)
        return euler_flow(sigmas_S, shift, train_steps)

    return DiffusionScheduler(step, train_steps - 1, static)


def _unipc(fields: Fields, call: TimestepCall) -> DiffusionScheduler:
    """Read a UniPCMultistepScheduler config of order 2."""
    fields.require("solver_order", 2)
    _refuse_but_read_as(fields, "solver_type", "bh2", "midpoint", "heun", "logrho")
    fields.require("predict_x0", True)
    fields.require("lower_order_final", True)
    for name in ("disable_corrector", "solver_p", "shift_terminal"):
        fields.require_off(name)
    _refuse_other_sigmas(fields)
    _refuse_passed_sigmas(fields, call)
    dynamic = fields.flag("use_dynamic_shifting", False)
    shift_of = _dynamic_shift(fields, call) if dynamic else _static_shift(fields)

    def flow(steps: int, tokens: int, train_steps: int) -> Schedule:
        return unipc_flow(steps, shift_of(tokens, steps), train_steps, dynamic=dynamic)

    return _multistep(fields, unipc, flow)


def _dpmpp(fields: Fields, call: TimestepCall) -> DiffusionScheduler:
    """Read a DPMSolverMultistepScheduler config as DPM-Solver++ 2M."""
    fields.require("algorithm_type", "dpmsolver++")
    fields.require("solver_order", 2)
    _refuse_but_read_as(fields, "solver_type", "midpoint", "logrho", "bh1", "bh2")
    fields.require("lambda_min_clipped", -math.inf)
    for name in ("use_lu_lambdas", "variance_type"):
        fields.require_off(name)
    _refuse_other_sigmas(fields)
    _refuse_passed_sigmas(fields, call)
    shift_of = _static_shift(fields)
    if call.mu is not None:  # diffusers accepts a mu only with dynamic shifting; without a mu it ignores the flag
        if not fields.flag("use_dynamic_shifting", False):
            raise fields.refuse(
                f"use_dynamic_shifting is not true, but a {call.pipeline} passes a mu, which {_name(fields)} accepts "
                "only with dynamic shifting; set it to true"
            )
        fields.require("time_shift_type", "exponential")
        mu = call.mu(fields)

        def shift_of(tokens: int, steps: int) -> float:
            return float(np.exp(mu(tokens, steps)))

    def flow(steps: int, tokens: int, train_steps: int) -> Schedule:
        return dpmpp_flow(steps, shift_of(tokens, steps), train_steps)

    return _multistep(fields, dpmpp_2m, flow)  # a last sigma of zero forces order 1, whatever lower_order_final is


def _lcm(fields: Fields, call: TimestepCall) -> DiffusionScheduler:
    """Read an LCMScheduler config.

    Its timesteps are those of the distillation, so timestep_spacing has no effect. No step ends before the first
    timestep, so set_alpha_to_one has no effect either.
    """
    _refuse_passed_sigmas(fields, call)
    betas = _betas(fields, start=0.00085, end=0.012, kind="scaled_linear")
    fields.require("prediction_type", "epsilon")
    for name in ("clip_sample", "thresholding"):
        fields.require_off(name)
    original = fields.count("original_inference_steps", 50, most=betas.train_steps)
    sampler = LatentConsistency(fields.positive("timestep_scaling", 10.0))
    return DiffusionScheduler(sampler, original, lambda steps, tokens: lcm_schedule(steps, betas, original))


READERS: dict[str, Callable[[Fields, TimestepCall], DiffusionScheduler]] = {
    "FlowMatchEulerDiscreteScheduler": _euler,
    "FlowMatchLCMScheduler": _flow_lcm,
    "UniPCMultistepScheduler": _unipc,
    "DPMSolverMultistepScheduler": _dpmpp,
    "LCMScheduler": _lcm,
}
"""The functions that read a scheduler's config, keyed by the scheduler's class name in diffusers."""

OPTIONS = (
    "algorithm_type", "base_image_seq_len", "base_shift", "beta_end", "beta_schedule", "beta_start", "clip_sample",
    "clip_sample_range", "corrector_order", "disable_corrector", "dynamic_thresholding_ratio", "euler_at_final",
    "final_sigmas_type", "flow_shift", "interpolation_type", "invert_sigmas", "lambda_min_clipped",
    "lower_order_final", "max_image_seq_len", "max_shift", "num_train_timesteps", "original_inference_steps",
    "predict_x0", "prediction_type", "predictor_order", "rescale_betas_zero_snr", "rho", "sample_max_value",
    "scale_factors", "set_alpha_to_one", "shift", "shift_terminal", "sigma_data", "sigma_max", "sigma_min",
    "sigma_schedule", "skip_prk_steps", "solver_order", "solver_p", "solver_type", "steps_offset",
    "stochastic_sampling", "tau_func", "thresholding", "time_shift_type", "timestep_scaling", "timestep_spacing",
    "timestep_type", "trained_betas", "upscale_mode", "use_beta_sigmas", "use_dynamic_shifting",
    "use_exponential_sigmas", "use_flow_sigmas", "use_karras_sigmas", "use_lu_lambdas", "variance_type",
)  # fmt: skip
"""The options of diffusers' schedulers for images and videos.

If diffusers converts the config of one scheduler to another, the new config contains the options of both. Each reader
reads or refuses all its own options that change a result; the others change nothing.
"""


# -- what several have ------------------------------------------------------------------------------------------------


def _name(fields: Fields) -> str:
    return fields.text("_class_name")


def _refuse_but_read_as(fields: Fields, name: str, built: str, *same: str) -> None:
    """Refuse every value of a scheduler option except `built` and those in `same`, which diffusers treats alike."""
    if fields.value(name) not in same:
        fields.require(name, built)


def _refuse_passed_sigmas(fields: Fields, call: TimestepCall) -> None:
    """Refuse a scheduler that cannot use the sigmas which the pipeline passes to it."""
    if call.passed_sigmas(fields) is not None:
        unless = " unless use_flow_sigmas is true" if call.except_flow else ""
        raise fields.refuse(
            f"_class_name is {_name(fields)}, which does not accept the sigmas that a {call.pipeline} passes{unless}"
        )


def _static_shift(fields: Fields) -> Shift:
    factor = fields.positive("flow_shift", 1.0)
    return lambda tokens, steps: factor


def _dynamic_shift(fields: Fields, call: TimestepCall) -> Shift:
    """Return the shift that follows from the mu which the pipeline passes.

    Raises:
        ModelRefused: If the pipeline passes no mu, or time_shift_type is unknown.
    """
    if call.mu is None:
        raise fields.refuse(
            f"use_dynamic_shifting = True is not supported: it needs a mu, which a {call.pipeline} does not pass"
        )
    kind = fields.text("time_shift_type", "exponential")
    if kind not in ("exponential", "linear"):
        raise fields.refuse(f"time_shift_type = {kind} is not supported; write exponential or linear")
    mu = call.mu(fields)
    return mu if kind == "linear" else lambda tokens, steps: math.exp(mu(tokens, steps))


def _multistep(
    fields: Fields, sampler: DiffusionSampler, flow: Callable[[int, int, int], Schedule]
) -> DiffusionScheduler:
    """Return the schedules of UniPC or DPM-Solver++, for velocities with flow sigmas or for noise with betas.

    Args:
        fields: Scheduler config.
        sampler: Function that performs one step.
        flow: Makes a schedule of flow sigmas from the steps, the tokens of the latent and the training steps.
    """
    fields.require("final_sigmas_type", "zero")
    fields.require_off("thresholding")
    along_flow = fields.flag("use_flow_sigmas", False)
    prediction, built = fields.text("prediction_type", "epsilon"), "flow_prediction" if along_flow else "epsilon"
    if prediction != built:
        raise fields.refuse(
            f"prediction_type = {prediction} is not supported together with use_flow_sigmas = {along_flow}; write "
            f"{built}"
        )
    if along_flow:
        train_steps = _train_steps(fields)
        return DiffusionScheduler(sampler, train_steps - 1, lambda steps, tokens: flow(steps, tokens, train_steps))
    spacing, offset = _spacing(fields)
    betas = _betas(fields, start=0.0001, end=0.02, kind="linear")
    most = betas.train_steps - 1 - offset
    return DiffusionScheduler(sampler, most, lambda steps, tokens: discrete_schedule(steps, betas, spacing, offset))


def _spacing(fields: Fields) -> tuple[Spacing, int]:
    """Return the spacing of timesteps and their offset, which only leading spacing has.

    Raises:
        ModelRefused: If the spacing or the offset is not supported.
    """
    spacing = fields.text("timestep_spacing", "linspace")
    if spacing == "leading":
        offset = fields.natural("steps_offset") if fields.has("steps_offset") else 0
        if offset > 1:
            raise fields.refuse(f"steps_offset = {offset} is not supported; write 0 or 1")
        return "leading", offset
    if spacing in ("linspace", "trailing"):
        return ("trailing" if spacing == "trailing" else "linspace"), 0
    raise fields.refuse(f"timestep_spacing = {spacing} is not supported; write linspace, leading or trailing")


def _betas(fields: Fields, *, start: float, end: float, kind: str) -> Betas:
    """Return the training betas; `start`, `end` and `kind` are the defaults for values missing in the config."""
    for name in ("trained_betas", "rescale_betas_zero_snr"):
        fields.require_off(name)
    kind = fields.text("beta_schedule", kind)
    if kind not in ("linear", "scaled_linear"):
        raise fields.refuse(f"beta_schedule = {kind} is not supported; write linear or scaled_linear")
    betas = Betas(
        fields.positive("beta_start", start),
        fields.positive("beta_end", end),
        kind == "scaled_linear",
        _train_steps(fields),
    )
    if not betas.start <= betas.end < 1:
        raise fields.refuse(
            f"beta_start = {betas.start} and beta_end = {betas.end}; beta_end must be at least beta_start and below 1"
        )
    return betas


def _train_steps(fields: Fields) -> int:
    """Return the number of training steps, at least two: a schedule needs a step between two levels."""
    steps = fields.count("num_train_timesteps", 1000, most=MAX_TRAIN_STEPS)
    if steps < 2:
        raise fields.refuse(f"num_train_timesteps is {steps}; it must be 2 or more")
    return steps


def _refuse_other_sigmas(fields: Fields) -> None:
    for name in ("use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas"):
        fields.require_off(name)
