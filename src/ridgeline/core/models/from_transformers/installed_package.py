"""The installed `transformers` package: whether it is there, and whether its version is one that models can come from.

It is an optional dependency, and takes seconds to import. So this module reads its metadata, and imports it only for
the config of a model that needs it.
"""

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

from ridgeline.core.models.common.fields import Fields
from ridgeline.util.untrusted import first_line

PIP = "pip install 'ridgeline[transformers]'"
"""The command that installs the optional dependency."""
FLOOR = (5, 24)
"""The first version whose attention interface, masks and expert functions the engine was tested with."""
NEXT_MAJOR = 6
"""The first version that may no longer fit: classes of another major version are not used."""
_REPAIR = f"pip install --force-reinstall 'transformers>={FLOOR[0]}.{FLOOR[1]},<{NEXT_MAJOR}'"


def installed_version() -> tuple[int, int] | None:
    """Return the major and minor version of the installed transformers; None if it is not installed."""
    try:
        stated = version("transformers")
    except PackageNotFoundError:
        return None
    numbers = re.match(r"(\d+)\.(\d+)", stated)
    return None if numbers is None else (int(numbers[1]), int(numbers[2]))


def is_usable() -> bool:
    """Return whether a version of transformers is installed whose classes can be priced and run.

    It may still fail to be imported, as `package_problem` finds out.
    """
    return _version_problem() is None


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
    problem = package_problem()
    if problem is not None:
        wanted = f"no family here builds {stated_architecture(fields)}; its class in transformers would be used"
        raise fields.refuse(f"{wanted}, but {problem}")


def package_problem() -> str | None:
    """Return what is wrong with the installed transformers, and the command that mends it; None if it is usable.

    The message is a clause of an error. Only here is the package imported, because an installation may be broken: a
    package that it needs is missing or of another version, or its own files are.
    """
    problem = _version_problem()
    if problem is not None:
        return f"{problem}: {PIP}"
    try:
        import_module("transformers.models.auto.modeling_auto")
        import_module("transformers.modeling_utils")
    except Exception as error:  # whatever a broken installation raises
        return f"{package_name()} cannot be imported ({first_line(error).rstrip('.')}): {_REPAIR}"
    return None


def _version_problem() -> str | None:
    """Return what is wrong with the version of the installed transformers, as a clause; None if nothing is."""
    found = installed_version()
    needed = f"transformers {FLOOR[0]}.{FLOOR[1]} or newer, below {NEXT_MAJOR},"
    if found is None:
        return f"{needed} is not installed"
    if FLOOR <= found < (NEXT_MAJOR, 0):
        return None
    return f"{needed} is needed; {package_name()} is installed"


def stated_architecture(fields: Fields) -> str:
    """Return the name of a config's architecture, else its `model_type`, for an error message."""
    return fields.architecture or str(fields.values.get("model_type", "this config"))


@contextmanager
def without_warnings() -> Iterator[None]:
    """Disable warnings of transformers and torch, such as those about keys that transformers renames."""
    log = logging.getLogger("transformers")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
