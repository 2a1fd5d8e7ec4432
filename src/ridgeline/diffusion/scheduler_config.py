"""scheduler_config.json: the sampler and the schedule that a pipeline was released with.

Only what is built is read. An option that would change the result is refused; one that changes nothing here is passed
over by name; one that nobody knows is refused.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ridgeline.diffusion.samplers import LatentConsistency, Sampler, dpmpp_2m, euler, renoise, unipc
from ridgeline.diffusion.schedules import (
    Betas,
    Schedule,
    Shift,
    StaticShift,
    TokenShift,
    consistency,
    discrete,
    dpmpp_flow,
    euler_flow,
    unipc_flow,
)
from ridgeline.models.fields import Fields

MAX_TRAIN_STEPS = 100_000


@dataclass(frozen=True, slots=True)
class Scheduler:
    """A sampler with the schedules that it takes.

    Args:
        sampler: makes one step.
        most_steps: more could not be told apart by the denoiser.
        make: a schedule of so many steps for a latent of so many tokens.
    """

    sampler: Sampler
    most_steps: int
    make: Callable[[int, int], Schedule]

    def schedule(self, steps: int, tokens: int) -> Schedule:
        """The schedule of a request. Raises ValueError for a number of steps that cannot be."""
        if not 1 <= steps <= self.most_steps:
            raise ValueError(f"{steps} steps: this model takes 1 to {self.most_steps}")
        return self.make(steps, tokens)


def read_scheduler(path: Path, *, shift: Shift | None = None) -> Scheduler:
    """What the scheduler_config.json at `path` says.

    shift: stands for its rule of dynamic shifting, where the pipeline has one of its own (`flux2_shift`).
    Raises ModelRefused in one line that names the file, the option and what is supported.
    """
    return scheduler_of(Fields.read(path), shift=shift)


def scheduler_of(fields: Fields, *, shift: Shift | None = None) -> Scheduler:
    """As `read_scheduler`, of fields that were read."""
    name = fields.text("_class_name", "")
    if name not in _READERS:
        raise fields.refuse(f"_class_name is {name or 'not there'}; samplers of {', '.join(_READERS)} are built")
    scheduler = _READERS[name](fields, shift)
    if unread := fields.unread():
        raise fields.refuse(f"{unread[0]} is no option of {name} that is known; remove it if it changes nothing")
    return scheduler


def _euler(fields: Fields, shift: Shift | None) -> Scheduler:
    """FlowMatchEulerDiscreteScheduler. It is given the sigmas that pipelines of Z-Image and FLUX give it."""
    train_steps = _train_steps(fields)
    _refuse_other_sigmas(fields)
    for name in ("invert_sigmas", "shift_terminal"):
        fields.refuse_if(name)
    dynamic = fields.flag("use_dynamic_shifting", False)
    rule = (shift or _token_shift(fields)) if dynamic else StaticShift(fields.positive("shift", 1.0))
    fields.passed_over("shift", *_TOKEN_SHIFT)  # of the two rules only one is asked
    step = renoise if fields.flag("stochastic_sampling", False) else euler

    def schedule(steps: int, tokens: int) -> Schedule:
        return euler_flow(steps, rule(tokens, steps), train_steps, dynamic=dynamic)

    return Scheduler(step, train_steps - 1, schedule)


def _unipc(fields: Fields, shift: Shift | None) -> Scheduler:
    """UniPCMultistepScheduler of order 2."""
    fields.refuse_but("solver_order", 2)
    fields.refuse_but("solver_type", "bh2")
    fields.refuse_but("predict_x0", True)
    fields.refuse_but("lower_order_final", True)
    for name in ("disable_corrector", "solver_p", "shift_terminal"):
        fields.refuse_if(name)
    fields.passed_over("sigma_min", "sigma_max")  # of Karras' sigmas and their like
    return _multistep(fields, unipc, unipc_flow)


def _dpmpp(fields: Fields, shift: Shift | None) -> Scheduler:
    """DPMSolverMultistepScheduler as DPM-Solver++ 2M."""
    fields.refuse_but("algorithm_type", "dpmsolver++")
    fields.refuse_but("solver_order", 2)
    fields.refuse_but("solver_type", "midpoint")
    fields.refuse_but("lambda_min_clipped", -math.inf)
    for name in ("use_lu_lambdas", "variance_type"):
        fields.refuse_if(name)
    fields.passed_over("lower_order_final", "euler_at_final")  # a last sigma of zero asks for order 1 anyway
    return _multistep(fields, dpmpp_2m, dpmpp_flow)


def _lcm(fields: Fields, shift: Shift | None) -> Scheduler:
    """LCMScheduler."""
    betas = _betas(fields, start=0.00085, end=0.012, kind="scaled_linear")
    fields.refuse_but("prediction_type", "epsilon")
    for name in ("clip_sample", "thresholding"):
        fields.refuse_if(name)
    fields.passed_over("clip_sample_range", *_THRESHOLDING)
    # Its timesteps are those of the distillation, whatever spacing says, and no step ends before the first of them.
    fields.passed_over("timestep_spacing", "steps_offset", "set_alpha_to_one")
    original = fields.count("original_inference_steps", 50, most=betas.train_steps)
    sampler = LatentConsistency(fields.positive("timestep_scaling", 10.0))
    return Scheduler(sampler, original, lambda steps, tokens: consistency(steps, betas, original))


_READERS: dict[str, Callable[[Fields, Shift | None], Scheduler]] = {
    "FlowMatchEulerDiscreteScheduler": _euler,
    "UniPCMultistepScheduler": _unipc,
    "DPMSolverMultistepScheduler": _dpmpp,
    "LCMScheduler": _lcm,
}


# -- what several have ------------------------------------------------------------------------------------------------

_TOKEN_SHIFT = ("base_shift", "max_shift", "base_image_seq_len", "max_image_seq_len", "time_shift_type")
_THRESHOLDING = ("dynamic_thresholding_ratio", "sample_max_value")


def _multistep(fields: Fields, sampler: Sampler, flow: Callable[[int, float, int], Schedule]) -> Scheduler:
    """The schedules of UniPC and DPM-Solver++, which take velocities along flow sigmas or noise along betas."""
    _refuse_other_sigmas(fields)
    fields.refuse_but("final_sigmas_type", "zero")
    for name in ("thresholding", "use_dynamic_shifting"):
        fields.refuse_if(name)
    fields.passed_over(*_THRESHOLDING, "time_shift_type", "steps_offset")
    along_flow = fields.flag("use_flow_sigmas", False)
    prediction, built = fields.text("prediction_type", "epsilon"), "flow_prediction" if along_flow else "epsilon"
    if prediction != built:
        raise fields.refuse(f"prediction_type = {prediction} is not supported beside use_flow_sigmas = {along_flow}")
    if along_flow:
        train_steps, factor = _train_steps(fields), fields.positive("flow_shift", 1.0)
        fields.passed_over(*_BETAS, "timestep_spacing")
        return Scheduler(sampler, train_steps - 1, lambda steps, tokens: flow(steps, factor, train_steps))
    fields.refuse_but("timestep_spacing", "linspace")
    fields.passed_over("flow_shift")
    betas = _betas(fields, start=0.0001, end=0.02, kind="linear")
    return Scheduler(sampler, betas.train_steps - 1, lambda steps, tokens: discrete(steps, betas))


_BETAS = ("beta_start", "beta_end", "beta_schedule", "trained_betas", "rescale_betas_zero_snr")


def _betas(fields: Fields, *, start: float, end: float, kind: str) -> Betas:
    """The betas of training; start, end and kind where the config does not say them."""
    for name in ("trained_betas", "rescale_betas_zero_snr"):
        fields.refuse_if(name)
    kind = fields.text("beta_schedule", kind)
    if kind not in ("linear", "scaled_linear"):
        raise fields.refuse(f"beta_schedule = {kind} is not supported; linear and scaled_linear are")
    betas = Betas(
        fields.positive("beta_start", start),
        fields.positive("beta_end", end),
        kind == "scaled_linear",
        _train_steps(fields),
    )
    if not betas.start <= betas.end < 1:
        raise fields.refuse(f"beta_start = {betas.start} and beta_end = {betas.end}; betas rise and stay below 1")
    return betas


def _token_shift(fields: Fields) -> TokenShift:
    """Dynamic shifting, by the line through the two points that a config states."""
    kind = fields.text("time_shift_type", "exponential")
    if kind not in ("exponential", "linear"):
        raise fields.refuse(f"time_shift_type = {kind} is not supported; exponential and linear are")
    base, most = fields.count("base_image_seq_len", 256), fields.count("max_image_seq_len", 4096)
    if base >= most:
        raise fields.refuse(f"base_image_seq_len = {base} is not below max_image_seq_len = {most}")
    shifts = fields.positive("base_shift", 0.5), fields.positive("max_shift", 1.15)
    return TokenShift((base, shifts[0]), (most, shifts[1]), kind == "exponential")


def _train_steps(fields: Fields) -> int:
    """Two at least: a schedule needs a step between them."""
    steps = fields.count("num_train_timesteps", 1000, most=MAX_TRAIN_STEPS)
    if steps < 2:
        raise fields.refuse(f"num_train_timesteps is {steps}; it must be 2 or more")
    return steps


def _refuse_other_sigmas(fields: Fields) -> None:
    for name in ("use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas"):
        fields.refuse_if(name)
