"""`ridgeline serve --priced DEVICE` runs a server without a model, whose steps take the predicted time on a device."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ridgeline.cli.flags import panel
from ridgeline.cli.options import device_named
from ridgeline.core.checkpoint import ModelSource
from ridgeline.insight.simulate.priced_engine import CHAT_TEMPLATE, MAKER, served_machine, without_text
from ridgeline.price.engine_profile import default_engine
from ridgeline.price.plan.deployment_plan import check_devices
from ridgeline.price.plan.scenario import Deployment
from ridgeline.server.lifecycle import ServedLLM

_priced = panel("Simulated engine")
_COMPUTES = (
    *("--dummy-weights", "--threads", "--device", "--enforce-eager", "--tensor-parallel"),
    *("--speculate", "--speculate-tokens", "--speculative-config", "--seed"),
    *("--lora-modules", "--enable-lora", "--max-lora-rank", "--max-loras"),
)


@dataclass(frozen=True, slots=True)
class PricedFlags:
    """The options for a server that simulates a device instead of running a model."""

    priced: str | None = _priced(
        "Run no model: each step takes the time predicted for this device, and responses are max_tokens tokens of "
        "filler. For testing routers, dashboards and clients.",
        metavar="DEVICE",
    )
    priced_devices: int = _priced("The number of these devices, with tensor parallelism over all of them.", default=1)


def check_priced(flags: PricedFlags, given: Sequence[str]) -> None:
    """Raise ValueError for options that only apply to a model that runs, or for --priced-devices without --priced.

    Args:
        flags: The simulation options.
        given: The options that the user gave, as typed.
    """
    if flags.priced is None:
        if flags.priced_devices != 1:
            raise ValueError("--priced-devices is the number of --priced devices; give both")
        return
    computing = [option for option in given if option in _COMPUTES]
    if computing:
        raise ValueError(f"{computing[0]} is for a model that runs, but with --priced no model runs; leave it out")


def served_priced(source: ModelSource, served: ServedLLM, flags: PricedFlags) -> ServedLLM:
    """Return the servable that simulates a model on a device.

    Raises:
        ValueError: If the model does not fit on the device.
    """
    assert flags.priced is not None
    assert served.settings is not None
    device = device_named(flags.priced)
    check_devices(Deployment(device, flags.priced_devices))
    driven = default_engine(device).on(device, flags.priced_devices)
    settings = served.settings
    if settings.chat_template is None and without_text(source):
        settings = replace(settings, chat_template=str(CHAT_TEMPLATE))
    served_machine(source, settings, driven, flags.priced_devices)
    return replace(
        served,
        settings=settings,
        dummy_weights=True,  # without a tokenizer, bytes count as tokens
        threads=1,
        device=lambda: driven,
        engine_factory=MAKER,
        devices=flags.priced_devices,
    )


def describe_priced_devices(served: ServedLLM) -> str:
    """Return the devices that steps are priced for: `NVIDIA H100 SXM 80GB`, `4 x NVIDIA H100 SXM 80GB`."""
    device = None if served.device is None else served.device()
    assert device is not None
    return device.title if served.devices == 1 else f"{served.devices} x {device.title}"
