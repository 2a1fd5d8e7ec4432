"""`ridgeline env` prints the machine and the package versions for a bug report."""

import platform
from collections.abc import Iterator
from importlib.metadata import version
from inspect import isabstract

import torch

from ridgeline.backends import backend_of
from ridgeline.backends.cpu.library import state
from ridgeline.cli import options
from ridgeline.cli.console import print_json
from ridgeline.core.models.from_transformers.installed_package import PIP, installed_version, package_problem
from ridgeline.core.ops.backend import Backend
from ridgeline.core.ops.op import Op
from ridgeline.util.host import GIB, available_memory, processor
from ridgeline.util.version import __version__

_PACKAGES = ("torch", "safetensors", "tokenizers", "sentencepiece", "jinja2", "numpy")


def env(as_json: options.Json = False) -> None:
    """Show this machine and the installed versions, as a bug report needs them."""
    facts = {
        "ridgeline": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "kernels": state(),
        "run by PyTorch": _without_kernels(backend_of(torch.device("cpu"))),
        "memory available": f"{available_memory() / GIB:.1f} GiB",
        **{name: version(name) for name in _PACKAGES},
        "transformers": _transformers(),
    }
    if as_json:
        print_json(facts)
        return
    for name, value in facts.items():
        print(f"{name:17} {value}")


def _transformers() -> str:
    """Return the version of the optional package transformers, with the reason and a command if it is not used."""
    if installed_version() is None:
        return f"not installed: {PIP}"
    problem = package_problem()
    return version("transformers") + ("" if problem is None else f", not used: {problem}")


def _without_kernels(backend: Backend) -> str:
    """Return the kinds of ops that PyTorch runs entirely or in part, because a backend has no kernels for them."""
    if not backend.takes:
        return "all ops"
    kinds: dict[str, set[bool]] = {}
    for op in _subclasses(Op):  # type: ignore[type-abstract]  # only its subclasses are read
        if not isabstract(op):
            kinds.setdefault(op.kind, set()).add(issubclass(op, backend.takes))
    none = [kind for kind, taken in sorted(kinds.items()) if taken == {False}]
    some = [kind for kind, taken in sorted(kinds.items()) if len(taken) == 2]
    return f"{', '.join(none)}; partly {', '.join(some)}; all ops of models in float16"


def _subclasses(of: type[Op]) -> Iterator[type[Op]]:
    for each in of.__subclasses__():
        yield each
        yield from _subclasses(each)
