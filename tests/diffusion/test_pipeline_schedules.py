"""Every class of pipelines with every class of schedulers: timesteps, sigmas and steps against diffusers' pipeline
itself around a stand-in for its denoiser; what is refused is what docs/images.md lists."""

import inspect
from collections.abc import Iterator
from pathlib import Path

import diffusers
import pytest
import torch
from diffusers.schedulers import KarrasDiffusionSchedulers

from diffusion.schedulers import FLUX_DEV, PIXART, PIXART_LCM, WAN, Z_IMAGE, Config, relative
from diffusion.stand_ins import noise_of, predicted, theirs, tokens_of
from ridgeline.core.models.common.fields import Fields, ModelRefused
from ridgeline.media.diffusion.pipeline_class import PIPELINES
from ridgeline.media.diffusion.samplers import SamplerState
from ridgeline.media.diffusion.scheduler_config import OPTIONS, READERS, DiffusionScheduler, scheduler_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "images.md"
NOISE = ("PixArtSigmaPipeline", "PixArtAlphaPipeline")  # whose denoisers predict it
SMALL, SIZES = (64, 96), ((256, 256), (1024, 1536))

BESIDE_OTHERS = {"dynamic_thresholding_ratio", "sample_max_value", "clip_sample_range", "upscale_mode"}
"""Options that count only with one that is refused."""

EULER: Config = Z_IMAGE | {"use_dynamic_shifting": False}
DYNAMIC: Config = FLUX_DEV
UNIPC_NOISE: Config = WAN | {"use_flow_sigmas": False, "prediction_type": "epsilon"}
DPM_FLOW: Config = PIXART | {"use_flow_sigmas": True, "prediction_type": "flow_prediction", "flow_shift": 5.0}
FLOW_LCM: Config = EULER | {"_class_name": "FlowMatchLCMScheduler"}
OTHER_SIGMAS = [{"use_karras_sigmas": True}, {"use_exponential_sigmas": True}, {"use_beta_sigmas": True}]
BETAS = [
    {"beta_schedule": "scaled_linear", "beta_end": 0.012},
    {"beta_schedule": "squaredcos_cap_v2"},
    {"trained_betas": [0.01] * 1000},
    {"rescale_betas_zero_snr": True},
]
SPACINGS = [
    {"timestep_spacing": "leading"},
    {"timestep_spacing": "leading", "steps_offset": 1},
    {"timestep_spacing": "trailing"},
    {"steps_offset": 1},
]
PREDICTIONS = [{"prediction_type": "sample"}, {"prediction_type": "v_prediction"}]
MULTISTEP = [
    *OTHER_SIGMAS,
    {"solver_order": 1},
    {"solver_order": 3},
    {"final_sigmas_type": "sigma_min"},
    {"thresholding": True},
    {"lower_order_final": False},
]
OF_UNIPC = [
    *MULTISTEP,
    {"solver_type": "bh1"},
    {"solver_type": "midpoint"},
    {"predict_x0": False},
    {"disable_corrector": [0]},
    {"sigma_min": 0.1},
    {"sigma_max": 10.0},
]
OF_DPM = [
    *MULTISTEP,
    {"solver_type": "heun"},
    {"solver_type": "bh2"},
    {"algorithm_type": "deis"},
    {"algorithm_type": "sde-dpmsolver++"},
    {"euler_at_final": True},
    {"lambda_min_clipped": -5.1},
    {"use_lu_lambdas": True},
    {"variance_type": "learned"},
]
FLOW_SHIFTS = [
    {"flow_shift": 1.0},
    {"flow_shift": 5},
    {"use_dynamic_shifting": True},
    {"use_dynamic_shifting": True, "time_shift_type": "linear"},
    {"use_dynamic_shifting": True, "base_shift": 0.3, "max_shift": 0.9},
    {"num_train_timesteps": 500},
    {"timestep_spacing": "trailing"},
]
EULER_CHANGES = [
    {"shift": 1.0},
    {"shift": 7},
    {"num_train_timesteps": 500},
    {"shift_terminal": 0.1},
    {"invert_sigmas": True},
    {"use_flow_sigmas": True},
    {"final_sigmas_type": "sigma_min", "prediction_type": "flow_prediction", "flow_shift": 9.0},
    *OTHER_SIGMAS,
]
DYNAMIC_CHANGES = [
    {"time_shift_type": "linear"},
    {"base_shift": 0.3, "max_shift": 0.9, "base_image_seq_len": 100, "max_image_seq_len": 9000},
    {"shift_terminal": 0.02},
    {"use_flow_sigmas": True},
]

VARIANTS: list[tuple[Config, list[Config]]] = [
    (EULER, [*EULER_CHANGES, {"stochastic_sampling": True}]),
    (DYNAMIC, DYNAMIC_CHANGES),
    (FLOW_LCM, [*EULER_CHANGES, {"scale_factors": [0.5, 1.0]}]),
    (DYNAMIC | {"_class_name": "FlowMatchLCMScheduler"}, DYNAMIC_CHANGES),
    (WAN, [*OF_UNIPC, *FLOW_SHIFTS, {"shift_terminal": 0.1}, {"prediction_type": "epsilon"}]),
    (UNIPC_NOISE, [*OF_UNIPC, *BETAS, *SPACINGS, *PREDICTIONS, {"use_dynamic_shifting": True}]),
    (DPM_FLOW, [*OF_DPM, *FLOW_SHIFTS, {"prediction_type": "epsilon"}]),
    (PIXART, [*OF_DPM, *BETAS, *SPACINGS, *PREDICTIONS, {"use_dynamic_shifting": True}]),
    (
        PIXART_LCM,
        [
            *BETAS,
            *SPACINGS,
            *PREDICTIONS,
            {"original_inference_steps": 100},
            {"timestep_scaling": 3.0},
            {"set_alpha_to_one": False},
            {"clip_sample": True},
            {"thresholding": True},
        ],
    ),
]


def read(kind: str, config: Config) -> DiffusionScheduler:
    """What a pipeline of this class reads. Raises ModelRefused, also where its denoiser predicts something else."""
    scheduler = scheduler_of(Fields(config, "scheduler_config.json"), PIPELINES[kind].timesteps)
    wanted = "noise" if kind in NOISE else "velocity"
    found = scheduler.schedule(1, 64).prediction
    if found != wanted:
        raise ModelRefused(f"the transformer predicts {wanted}, the scheduler takes {found}")
    return scheduler


def readable(kind: str, config: Config) -> bool:
    """Whether a pipeline draws with a config."""
    try:
        read(kind, config)
    except ModelRefused:
        return False
    return True


CASES = [
    pytest.param(kind, config | change, id=f"{kind}-{config['_class_name']}-{change}")
    for kind in PIPELINES
    for config, changes in VARIANTS
    for change in ({}, *changes)
]
PLAIN = [
    pytest.param(kind, config, id=f"{kind}-{config['_class_name']}-{number}")
    for kind in PIPELINES
    for number, (config, _) in enumerate(VARIANTS)
    if readable(kind, config)
]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Latents here are too small for more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_every_option_has_a_case() -> None:
    """Of the classes that are built: an option that no case changes could be ignored. Another option of diffusers'
    schedulers changes nothing there, and is passed over."""
    known = set()
    for name in {*READERS, *(each.name for each in KarrasDiffusionSchedulers), "SASolverScheduler", "TCDScheduler"}:
        own = set(inspect.signature(getattr(diffusers, name).__init__).parameters) - {"self", "args", "kwargs"}
        known |= own
        changed = {
            option
            for config, changes in VARIANTS
            if config["_class_name"] == name
            for each in (config, *changes)
            for option in each
        }
        assert name not in READERS or own - changed <= BESIDE_OTHERS, (name, own - changed)
    assert set(OPTIONS) == known


@pytest.mark.parametrize(("kind", "config"), CASES)
def test_it_is_drawn_as_there_or_refused(kind: str, config: Config) -> None:
    """Every state of several runs, and the timesteps of larger sizes; what diffusers cannot draw is refused too."""
    try:
        scheduler = read(kind, config)
    except ModelRefused as error:
        refused = str(error)
    else:
        for steps in (1, 2, 5, 20):
            check_run(kind, config, scheduler, steps)
        for size in SIZES:
            check_schedule(kind, config, scheduler, 4, size)
        return
    assert "\n" not in refused
    if kind in refused:  # which says that it is for the pipeline's call
        with pytest.raises((ValueError, TypeError, AssertionError)):
            theirs(kind, config, 4, SMALL, once=True)


@pytest.mark.parametrize(("kind", "config"), PLAIN)
def test_its_schedules_are_theirs(kind: str, config: Config) -> None:
    """For every number of steps up to 50."""
    scheduler = read(kind, config)
    for steps in range(1, 51):
        check_schedule(kind, config, scheduler, steps, SMALL)


def check_run(kind: str, config: Config, scheduler: DiffusionScheduler, steps: int) -> None:
    """The latents after each step."""
    run = theirs(kind, config, steps, SMALL)
    schedule = scheduler.schedule(steps, tokens_of(kind, run.begun))
    assert [schedule.time(step) for step in range(steps)] == pytest.approx(run.told, rel=3e-7, abs=3e-7)
    state, draw = SamplerState(run.begun), noise_of(kind, run)
    for step, expected in enumerate(run.after):
        shown = run.after[step - 1] if step else run.begun  # theirs, so that no rounding is magnified
        state = scheduler.sampler(schedule, step, state, predicted(shown, schedule.time(step)), draw)
        assert relative(state.x, expected) < 1e-5, (steps, step)


def check_schedule(kind: str, config: Config, scheduler: DiffusionScheduler, steps: int, size: tuple[int, int]) -> None:
    """Timesteps and, of flows, sigmas exactly."""
    run = theirs(kind, config, steps, size, once=True)
    schedule = scheduler.schedule(steps, tokens_of(kind, run.begun))
    assert list(schedule.timesteps) == run.timesteps, (steps, size)
    if schedule.prediction == "velocity":
        assert [level.sigma for level in schedule.levels] == run.sigmas, (steps, size)
    elif run.sigmas:
        kept = [level.sigma / level.alpha for level in schedule.levels]
        assert kept == pytest.approx(run.sigmas, rel=3e-7), (steps, size)


# -- what the page lists ----------------------------------------------------------------------------------------------


def test_the_page_says_which_are_drawn() -> None:
    """A row for each class of pipelines: whether it draws with each class of schedulers that is built."""
    page = PAGE.read_text(encoding="utf-8").splitlines()
    rows = [" | ".join(["| pipeline", *READERS]) + " |"]
    for kind in PIPELINES:
        rows.append(" | ".join([f"| {kind}", *(drawn(kind, name) for name in READERS)]) + " |")
    missing = [row for row in rows if row not in page]
    assert not missing, "\n".join(["docs/images.md lacks", *missing])


def drawn(kind: str, name: str) -> str:
    """Whether a pipeline draws with a scheduler, with a static shift of its sigmas and with a dynamic one."""
    flow = {"use_flow_sigmas": True, "prediction_type": "flow_prediction"} if kind not in NOISE else {}
    config = {"_class_name": name, **(flow if "Multistep" in name else {})}
    static, dynamic = (readable(kind, config | {"use_dynamic_shifting": each}) for each in (False, True))
    if kind in NOISE:
        return "yes" if static else "no"
    return {(True, True): "yes", (True, False): "static", (False, True): "dynamic", (False, False): "no"}[
        static, dynamic
    ]


def refused_options() -> dict[str, list[str]]:
    """By the class of a scheduler and what its denoiser predicts: the options that no pipeline draws with."""
    found: dict[str, list[str]] = {}
    for config, changes in VARIANTS:
        name = config["_class_name"]
        if "Multistep" in name:
            name += ", flow" if config.get("use_flow_sigmas") else ", noise"
        listed = found.setdefault(name, [])
        for change in changes:
            if not any(readable(kind, config | change) for kind in PIPELINES):
                words = ", ".join(_said(option, value) for option, value in change.items())
                listed += [] if words in listed else [words]
    return found


def _said(option: str, value: object) -> str:
    return f"`{option}`" if value is True or isinstance(value, float | list) else f"`{option}` {value}".lower()


def test_the_page_lists_what_is_refused() -> None:
    """A row for each class of schedulers, and for noise and flow where it takes both."""
    page = PAGE.read_text(encoding="utf-8").splitlines()
    rows = [f"| {name} | {', '.join(options)} |" for name, options in refused_options().items()]
    missing = [row for row in rows if row not in page]
    assert not missing, "\n".join(["docs/images.md lacks", *missing])


def test_classes_that_are_not_built() -> None:
    """Are refused by name, whatever pipeline they come with; the page lists those that PixArt-Sigma's may come with."""
    page = PAGE.read_text(encoding="utf-8")
    others = [each.name for each in KarrasDiffusionSchedulers if each.name not in READERS]
    others += ["FlowMatchHeunDiscreteScheduler", "SASolverScheduler", "TCDScheduler"]
    for name in others:
        assert name in page
        for kind in PIPELINES:
            with pytest.raises(ModelRefused, match=f"^scheduler_config.json: _class_name is {name}; supported are "):
                read(kind, {"_class_name": name})
