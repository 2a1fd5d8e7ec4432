"""scheduler_config.json: defaults are diffusers', what changes the result is refused, what does not is passed over."""

import json
from pathlib import Path

import pytest
import torch

from diffusion.schedulers import CONFIGS, FLUX_DEV, PIXART, PIXART_LCM, WAN, Z_IMAGE, Config, draws, ours, theirs
from ridgeline.core.models.common.fields import ModelRefused
from ridgeline.media.diffusion.noise import Noise
from ridgeline.media.diffusion.pipeline_class import PIPELINES
from ridgeline.media.diffusion.samplers import SamplerState
from ridgeline.media.diffusion.scheduler_config import read_scheduler
from ridgeline.media.diffusion.timestep_call import flux2_mu

STATED = [(name, key) for name, config in CONFIGS.items() for key in config if not key.startswith("_")]


@pytest.mark.parametrize(("name", "key"), STATED)
def test_a_field_left_out(name: str, key: str) -> None:
    """Means what the reference takes for it, or is refused: a config without it is run beside the reference."""
    config = {field: value for field, value in CONFIGS[name].items() if field != key}
    try:
        scheduler = ours(config)
    except ModelRefused:
        assert key in ("prediction_type", "use_flow_sigmas"), "only these two have to agree"
        return
    steps = 50 if "lcm" in name else 5  # scaling shows at the last of many steps alone
    schedule, reference = scheduler.schedule(steps, 1000), theirs(config, steps, 1000)
    draw, generators = Noise(3, 1, (2, 4)), [torch.Generator().manual_seed(3)]
    state = expected = None
    for step, timestep in enumerate(reference.timesteps):
        assert schedule.time(step) * 1000 == pytest.approx(float(timestep), rel=3e-7)
        says = torch.Generator().manual_seed(step)
        if state is None:
            state, expected = SamplerState(draw()), torch.randn((1, 2, 4), generator=generators[0])
        prediction = torch.randn((1, 2, 4), generator=says)
        state = scheduler.sampler(schedule, step, state, prediction, draw)
        noise = {"generator": generators} if draws(name) else {}
        expected = reference.step(prediction, timestep, expected, **noise).prev_sample
    assert state is not None
    assert torch.allclose(state.x, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))


REFUSED: list[tuple[Config, Config, str]] = [
    ({}, {}, "_class_name is missing; supported are FlowMatchEulerDiscreteScheduler, "),
    (
        {"_class_name": "EulerAncestralDiscreteScheduler"},
        {},
        "_class_name is EulerAncestralDiscreteScheduler; supported are",
    ),
    (Z_IMAGE, {"use_karras_sigmas": True}, "use_karras_sigmas = True is not supported"),
    (Z_IMAGE, {"stochastic_sampling": "yes"}, "stochastic_sampling"),
    (Z_IMAGE, {"shift_terminal": 0.02}, "shift_terminal = 0.02 is not supported"),
    (Z_IMAGE, {"invert_sigmas": True}, "invert_sigmas = True is not supported"),
    (Z_IMAGE, {"shift": float("nan")}, "shift is nan; it must be a finite number above 0"),
    (Z_IMAGE, {"shift": 0}, "shift is 0; it must be a finite number above 0"),
    (Z_IMAGE, {"num_train_timesteps": 1}, "num_train_timesteps is 1; it must be 2 or more"),
    (Z_IMAGE, {"num_train_timesteps": 10**9}, "num_train_timesteps is 1000000000; it must be an integer from 1 to"),
    (Z_IMAGE, {"churn": 0.5}, "churn is not a known option of FlowMatchEulerDiscreteScheduler"),
    (FLUX_DEV, {"time_shift_type": "cubic"}, "time_shift_type = cubic is not supported; write exponential or linear"),
    (FLUX_DEV, {"max_image_seq_len": 256}, "base_image_seq_len = 256 must be below max_image_seq_len = 256"),
    (WAN, {"solver_order": 3}, "solver_order = 3 is not supported; 2 is"),
    (WAN, {"solver_type": "bh1"}, "solver_type = 'bh1' is not supported; bh2 is"),
    (WAN, {"predict_x0": False}, "predict_x0 = False is not supported; True is"),
    (WAN, {"lower_order_final": False}, "lower_order_final = False is not supported; True is"),
    (WAN, {"disable_corrector": [0]}, "disable_corrector = [0] is not supported"),
    (
        WAN,
        {"prediction_type": "epsilon"},
        "prediction_type = epsilon is not supported together with use_flow_sigmas = True",
    ),
    (WAN, {"use_dynamic_shifting": True}, "use_dynamic_shifting = True is not supported"),
    (WAN, {"final_sigmas_type": "sigma_min"}, "final_sigmas_type = 'sigma_min' is not supported; zero is"),
    (PIXART, {"prediction_type": "v_prediction"}, "prediction_type = v_prediction is not supported together with"),
    (
        PIXART,
        {"algorithm_type": "sde-dpmsolver++"},
        "algorithm_type = 'sde-dpmsolver++' is not supported; dpmsolver++ is",
    ),
    (PIXART, {"solver_type": "heun"}, "solver_type = 'heun' is not supported; midpoint is"),
    (PIXART, {"use_lu_lambdas": True}, "use_lu_lambdas = True is not supported"),
    (PIXART, {"variance_type": "learned"}, "variance_type = 'learned' is not supported"),
    (PIXART, {"lambda_min_clipped": -5.1}, "lambda_min_clipped = -5.1 is not supported; -inf is"),
    (PIXART, {"thresholding": True}, "thresholding = True is not supported"),
    (
        PIXART,
        {"timestep_spacing": "even"},
        "timestep_spacing = even is not supported; write linspace, leading or trailing",
    ),
    (PIXART, {"timestep_spacing": "leading", "steps_offset": 2}, "steps_offset = 2 is not supported; write 0 or 1"),
    (
        PIXART,
        {"beta_schedule": "squaredcos_cap_v2"},
        "beta_schedule = squaredcos_cap_v2 is not supported; write linear or",
    ),
    (PIXART, {"trained_betas": [0.1]}, "trained_betas = [0.1] is not supported"),
    (PIXART, {"rescale_betas_zero_snr": True}, "rescale_betas_zero_snr = True is not supported"),
    (
        PIXART,
        {"beta_end": 1.5},
        "beta_start = 0.0001 and beta_end = 1.5; beta_end must be at least beta_start and below 1",
    ),
    (PIXART_LCM, {"clip_sample": True}, "clip_sample = True is not supported"),
    (PIXART_LCM, {"prediction_type": "sample"}, "prediction_type = 'sample' is not supported; epsilon is"),
    (
        PIXART_LCM,
        {"original_inference_steps": 1001},
        "original_inference_steps is 1001; it must be an integer from 1 to",
    ),
]


@pytest.mark.parametrize(("config", "change", "says"), REFUSED, ids=[says for _, _, says in REFUSED])
def test_what_changes_the_result_is_refused(config: Config, change: Config, says: str) -> None:
    """In one line that names the file, the option and what would do."""
    with pytest.raises(ModelRefused) as refused:
        ours(config | change)
    message = str(refused.value)
    assert message.startswith(f"scheduler_config.json: {says}")
    assert "\n" not in message


@pytest.mark.parametrize("config", [Z_IMAGE, WAN, PIXART, PIXART_LCM], ids=lambda config: config["_class_name"])
def test_none_is_as_absent(config: Config) -> None:
    """Also of options that nobody knows: what is not set changes nothing."""
    ours(config | {"unheard_of": None, "use_karras_sigmas": None})


@pytest.mark.parametrize(
    ("release", "shift"),
    [("black-forest-labs__FLUX.1-schnell", 1.0), ("stabilityai__stable-diffusion-3-medium-diffusers", 3.0)],
)
def test_released_configs(data_dir: Path, release: str, shift: float) -> None:
    """Read from the folder as it was released."""
    path = data_dir / "configs" / release / "scheduler" / "scheduler_config.json"
    scheduler = read_scheduler(path, PIPELINES["FluxPipeline"].timesteps)
    levels = scheduler.schedule(4, 4096).levels
    assert [level.sigma for level in levels[:-1]] == pytest.approx(
        [shift * s / (1 + (shift - 1) * s) for s in (1, 0.75, 0.5, 0.25)]
    )


@pytest.mark.parametrize("kind", ["exponential", "linear"])
def test_a_pipelines_own_shift(tmp_path: Path, kind: str) -> None:
    """FLUX.2's mu stands for the rule of its config, which its pipelines do not ask; not for the kind of shift."""
    path = tmp_path / "scheduler_config.json"
    path.write_text(json.dumps(FLUX_DEV | {"time_shift_type": kind}))
    reference = theirs(FLUX_DEV | {"time_shift_type": kind}, 4, 4096)
    reference.set_timesteps(sigmas=[1.0, 0.75, 0.5, 0.25], mu=flux2_mu(4096, 4))
    own, other = (
        read_scheduler(path, PIPELINES[name].timesteps).schedule(4, 4096)
        for name in ("Flux2KleinPipeline", "FluxPipeline")
    )
    assert list(own.timesteps) == reference.timesteps.tolist()
    assert list(other.timesteps) != pytest.approx(own.timesteps, rel=1e-3)


def test_the_class_that_the_index_lists(tmp_path: Path) -> None:
    """diffusers reads the file as the class that model_index.json lists, whatever the file says of itself."""
    path, call = tmp_path / "scheduler_config.json", PIPELINES["WanPipeline"].timesteps
    path.write_text(json.dumps(WAN))
    with pytest.raises(ModelRefused, match=r"_class_name is UniPCMulti\w+, but model_index\.json lists a Flow"):
        read_scheduler(path, call, "FlowMatchEulerDiscreteScheduler")
    path.write_text(json.dumps({name: value for name, value in WAN.items() if name != "_class_name"}))
    read = read_scheduler(path, call, "UniPCMultistepScheduler").schedule(4, 64)
    assert read == ours(WAN).schedule(4, 64)


def test_files_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "scheduler_config.json"
    with pytest.raises(ModelRefused, match=r"scheduler_config\.json cannot be read"):
        read_scheduler(path, PIPELINES["WanPipeline"].timesteps)
    path.write_text("[]")
    with pytest.raises(ModelRefused, match="is not a JSON object"):
        read_scheduler(path, PIPELINES["WanPipeline"].timesteps)
