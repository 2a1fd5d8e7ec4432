"""The remark that the profile of an engine does not change the step times of a case."""

import math
from collections.abc import Iterable, Sequence

from ridgeline.price.engine_profile import DEFAULT_ENGINE, EngineProfile, default_engine, load_engine
from ridgeline.price.plan.request_phases import PhasePrice, decoder_phases, price_phase
from ridgeline.price.plan.scenario import Deployment, PlanWorkload, Scenario


def note_without_difference(case: Scenario, workload: PlanWorkload, phases: Sequence[PhasePrice]) -> str:
    """Return a note that a chosen engine is priced with the step times of the default one; "" if it is not.

    Args:
        case: The scenario.
        workload: The requests.
        phases: The priced phases of the workload.
    """
    setup, usual = case.setup, _compared_with(case.setup)
    if setup.usual or usual.name == setup.engine.name or setup.engine.own_attention:
        return ""
    device = usual.on(setup.device, setup.devices)
    others = [price_phase(case.price, device, phase) for phase in decoder_phases(case, workload)]
    if not all(map(math.isclose, _expected(phases), _expected(others))):
        return ""
    return (
        f"no measured difference in step times is known between {setup.engine.title} and {usual.title} for "
        f"{case.weights} weights on {setup.device.title}: {_remaining(setup.engine, usual)}"
    )


def _compared_with(setup: Deployment) -> EngineProfile:
    """Return the default engine of the device, or for this engine the default engine of devices in general."""
    usual = default_engine(setup.device)
    return load_engine(DEFAULT_ENGINE) if usual.name == setup.engine.name else usual


def _expected(phases: Iterable[PhasePrice]) -> list[float]:
    return [phase.seconds.expected for phase in phases]


def _remaining(engine: EngineProfile, usual: EngineProfile) -> str:
    """Return what still differs between the figures of two engines."""
    rules = ["memory"] * (engine.memory != usual.memory) + ["admission"] * (engine.admission != usual.admission)
    return f"only the rules for {' and '.join(rules)} differ" if rules else "all figures are the same"
