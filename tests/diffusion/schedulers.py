"""diffusers' schedulers as the reference, and configs as releases have them."""

import warnings
from typing import Any

import diffusers
import numpy as np
import torch

from ridgeline.core.models.common.fields import Fields
from ridgeline.media.diffusion.pipeline_class import PIPELINES
from ridgeline.media.diffusion.scheduler_config import DiffusionScheduler, scheduler_of

Config = dict[str, Any]

Z_IMAGE: Config = {
    "_class_name": "FlowMatchEulerDiscreteScheduler",
    "_diffusers_version": "0.36.0.dev0",
    "num_train_timesteps": 1000,
    "use_dynamic_shifting": False,
    "shift": 3.0,
}
FLUX_DEV: Config = {
    "_class_name": "FlowMatchEulerDiscreteScheduler",
    "base_image_seq_len": 256,
    "base_shift": 0.5,
    "max_image_seq_len": 4096,
    "max_shift": 1.15,
    "num_train_timesteps": 1000,
    "shift": 3.0,
    "use_dynamic_shifting": True,
    "time_shift_type": "exponential",
    "invert_sigmas": False,
    "shift_terminal": None,
    "stochastic_sampling": False,
    "use_beta_sigmas": False,
}
WAN: Config = {
    "_class_name": "UniPCMultistepScheduler",
    "_diffusers_version": "0.33.0.dev0",
    "beta_end": 0.02,
    "beta_schedule": "linear",
    "beta_start": 0.0001,
    "disable_corrector": [],
    "dynamic_thresholding_ratio": 0.995,
    "final_sigmas_type": "zero",
    "flow_shift": 3.0,
    "lower_order_final": True,
    "num_train_timesteps": 1000,
    "predict_x0": True,
    "prediction_type": "flow_prediction",
    "rescale_betas_zero_snr": False,
    "sample_max_value": 1.0,
    "solver_order": 2,
    "solver_p": None,
    "solver_type": "bh2",
    "steps_offset": 0,
    "thresholding": False,
    "timestep_spacing": "linspace",
    "trained_betas": None,
    "use_beta_sigmas": False,
    "use_exponential_sigmas": False,
    "use_flow_sigmas": True,
    "use_karras_sigmas": False,
}
PIXART: Config = {
    "_class_name": "DPMSolverMultistepScheduler",
    "algorithm_type": "dpmsolver++",
    "beta_end": 0.02,
    "beta_schedule": "linear",
    "beta_start": 0.0001,
    "dynamic_thresholding_ratio": 0.995,
    "euler_at_final": False,
    "lambda_min_clipped": -float("inf"),
    "lower_order_final": True,
    "num_train_timesteps": 1000,
    "prediction_type": "epsilon",
    "sample_max_value": 1.0,
    "solver_order": 2,
    "solver_type": "midpoint",
    "steps_offset": 0,
    "thresholding": False,
    "timestep_spacing": "linspace",
    "trained_betas": None,
    "use_karras_sigmas": False,
    "use_lu_lambdas": False,
    "variance_type": None,
}
PIXART_LCM: Config = {
    "_class_name": "LCMScheduler",
    "beta_end": 0.02,
    "beta_schedule": "linear",
    "beta_start": 0.0001,
    "clip_sample": False,
    "clip_sample_range": 1.0,
    "dynamic_thresholding_ratio": 0.995,
    "num_train_timesteps": 1000,
    "original_inference_steps": 50,
    "prediction_type": "epsilon",
    "rescale_betas_zero_snr": False,
    "sample_max_value": 1.0,
    "set_alpha_to_one": True,
    "steps_offset": 0,
    "thresholding": False,
    "timestep_scaling": 10.0,
    "timestep_spacing": "leading",
    "trained_betas": None,
}
CONFIGS: dict[str, Config] = {
    "euler, static shift": Z_IMAGE,
    "euler, exponential shift": FLUX_DEV,
    "euler, linear shift": FLUX_DEV | {"time_shift_type": "linear"},
    "euler, stochastic": Z_IMAGE | {"stochastic_sampling": True},
    "unipc, flow": WAN,
    "unipc, flow, no shift": WAN | {"flow_shift": 1.0},
    "unipc, epsilon": WAN | {"use_flow_sigmas": False, "prediction_type": "epsilon"},
    "dpm++, epsilon": PIXART,
    "dpm++, epsilon, scaled betas": PIXART | {"beta_schedule": "scaled_linear", "beta_end": 0.012},
    "dpm++, flow": PIXART | {"use_flow_sigmas": True, "prediction_type": "flow_prediction", "flow_shift": 5.0},
    "lcm": PIXART_LCM,
    "lcm, scaled betas": PIXART_LCM | {"beta_schedule": "scaled_linear", "timestep_scaling": 3.0},
}


def ours(config: Config, pipeline: str = "") -> DiffusionScheduler:
    """What is read from a config, by default as FLUX.1's pipelines ask flow-match Euler and Wan's ask all others."""
    by_default = "FluxPipeline" if config.get("_class_name") == "FlowMatchEulerDiscreteScheduler" else "WanPipeline"
    return scheduler_of(Fields(config, "scheduler_config.json"), PIPELINES[pipeline or by_default].timesteps)


def theirs(config: Config, steps: int, tokens: int, *, exact: bool = True) -> Any:
    """diffusers' scheduler, set for so many steps. exact: computing in fp64 with the sigmas that it keeps in fp32."""
    options = {name: value for name, value in config.items() if not name.startswith("_")}
    scheduler = getattr(diffusers, config["_class_name"])(**options)
    if config["_class_name"] == "FlowMatchEulerDiscreteScheduler":
        # What the pipelines of FLUX do.
        points = {name: options.get(name, default) for name, default in LINE.items()}
        mu = diffusers.pipelines.flux.pipeline_flux.calculate_shift(tokens, *points.values())
        scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps), mu=mu)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of numpy, that it asks of torch
            scheduler.set_timesteps(steps)
    scheduler.set_begin_index(0)
    if exact and hasattr(scheduler, "alphas_cumprod"):
        scheduler.alphas_cumprod = scheduler.alphas_cumprod.double()
    if exact and hasattr(scheduler, "sigmas"):
        scheduler.sigmas = scheduler.sigmas.double()
    return scheduler


def draws(name: str) -> bool:
    """Whether a sampler of CONFIGS adds noise."""
    return name.startswith("lcm") or "stochastic" in name


LINE = {"base_image_seq_len": 256, "max_image_seq_len": 4096, "base_shift": 0.5, "max_shift": 1.15}


def relative(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Largest difference beside the largest value."""
    return float((ours - theirs).abs().max() / theirs.abs().max())
