"""The installed `transformers` package: whether it is there, and whether its version is one that models can come from.

It is an optional dependency, and takes seconds to import. So this module only reads its metadata.
"""

import re
from importlib.metadata import PackageNotFoundError, version

from ridgeline.core.models.common.fields import Fields

PIP = "pip install 'ridgeline[transformers]'"
"""The command that installs the optional dependency."""
FLOOR = (5, 24)
"""The first version whose attention interface, masks and expert functions the engine was tested with."""
NEXT_MAJOR = 6
"""The first version that may no longer fit: classes of another major version are not used."""


def installed_version() -> tuple[int, int] | None:
    """Return the major and minor version of the installed transformers; None if it is not installed."""
    try:
        stated = version("transformers")
    except PackageNotFoundError:
        return None
    numbers = re.match(r"(\d+)\.(\d+)", stated)
    return None if numbers is None else (int(numbers[1]), int(numbers[2]))


def is_usable() -> bool:
    """Return whether a transformers is installed whose classes can be priced and run."""
    return _problem() is None


def package_name() -> str:
    """Return the name and version of the installed package, as in "transformers 5.24"."""
    found = installed_version()
    assert found is not None, "transformers is not installed"
    return f"transformers {found[0]}.{found[1]}"


def require_package(fields: Fields) -> None:
    """Raise ModelRefused, with the command that installs it, unless a usable transformers is installed.

    Args:
        fields: The config of the model that needs it, for the error message.
    """
    problem = _problem()
    if problem is not None:
        raise fields.refuse(f"no family here builds {stated_architecture(fields)}, and {problem}: {PIP}")


def _problem() -> str | None:
    """Return what is wrong with the installed transformers, as a clause of an error message; None if it is usable."""
    found = installed_version()
    needed = f"transformers {FLOOR[0]}.{FLOOR[1]} or newer, below {NEXT_MAJOR},"
    if found is None:
        return f"{needed} whose class would be used, is not installed"
    if FLOOR <= found < (NEXT_MAJOR, 0):
        return None
    return f"{needed} is needed for its class; {package_name()} is installed"


def stated_architecture(fields: Fields) -> str:
    """Return the name of a config's architecture, else its `model_type`, for an error message."""
    return fields.architecture or str(fields.values.get("model_type", "this config"))
