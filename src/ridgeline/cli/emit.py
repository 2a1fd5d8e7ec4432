"""`--emit` of `ridgeline plan`, which prints the launch command of the configuration that was priced."""

from dataclasses import replace
from pathlib import Path

from ridgeline.cli.flags import given_flags
from ridgeline.cli.plan_options import DisplayFlags, PlanFlags, SetupFlags
from ridgeline.core.checkpoint.catalogue import repository_of
from ridgeline.core.checkpoint.source import catalogue_name
from ridgeline.price.launch import TARGETS, launch_text
from ridgeline.price.launch.launch_config import launch_of_plan
from ridgeline.price.plan import DeploymentPlan


def with_engine(setup: SetupFlags, target: str | None) -> SetupFlags:
    """Return the setup with the engine that --emit launches, if --engine is not given.

    Raises:
        ValueError: If --emit names no engine that commands are written for, or the setup has --rope.
    """
    if target is None:
        return setup
    if target not in TARGETS:
        raise ValueError(f"--emit is {target!r}; give one of {', '.join(TARGETS)}")
    if setup.rope is not None:
        raise ValueError(
            "--emit does not write the engines' options for --rope; leave it out, or add the scaling to config.json"
        )
    return setup if setup.engine is not None else replace(setup, engine=TARGETS[target])


def check_plan_emit(flags: PlanFlags) -> None:
    """Raise ValueError if --emit of `plan` is combined with options that print or price something else."""
    others = [*given_flags(flags.shown, "emit"), *given_flags(flags.files), *["--json"] * flags.as_json]
    if flags.shown.emit is not None and others:
        raise ValueError(f"--emit prints the command of one plan and nothing else; leave out {' and '.join(others)}")


def refuse_emit(title: str, shown: DisplayFlags) -> None:
    """Raise ValueError for --emit if the model does not generate text."""
    if shown.emit is not None:
        raise ValueError(f"--emit is for models that generate text, but {title} does not; leave it out")


def emitted_plan(plan: DeploymentPlan, target: str, model: str) -> str:
    """Return the launch command of a plan.

    Args:
        plan: The plan.
        target: The value of --emit.
        model: The model as the user named it.

    Raises:
        ValueError: If the engine cannot run what was planned.
    """
    if plan.case.model.has_cross_attention:
        raise ValueError(f"--emit is for models that continue a text, not for {plan.name}; leave it out")
    return launch_text(target, launch_of_plan(plan, loaded_from(model)))


def loaded_from(model: str) -> str:
    """Return the repository, folder or file from which an engine loads the model that the user named.

    Raises:
        ValueError: If it is a name of the catalogue whose repository is not known.
    """
    path = Path(model)
    if path.exists():
        return str(path.parent if path.name == "config.json" else path)
    if model.count("/") == 1:
        return model
    found = repository_of(catalogue_name(model) or model)
    if found is None:
        raise ValueError(f"--emit: the repository of {model} is not known; give MODEL as ORGANISATION/NAME or a folder")
    return found
