"""The names that `import ridgeline` gives."""

import subprocess
import sys
import warnings

import pytest

import ridgeline
from ridgeline.media.diffusion.diffusion_request import DiffusionRequest


def test_every_public_name_is_there_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = {name: getattr(ridgeline, name) for name in ridgeline.__all__}
    assert found["DiffusionRequest"] is DiffusionRequest
    assert "Request" not in found, "a deprecated name is not in __all__, so `import *` does not warn"


def test_the_old_name_of_a_diffusion_request_warns() -> None:
    """The warning names the replacement and the line of the user's that has the old name."""
    with pytest.warns(DeprecationWarning, match=r"ridgeline\.Request .*; use ridgeline\.DiffusionRequest$") as told:
        assert ridgeline.Request is DiffusionRequest
    assert len(told) == 1
    assert told[0].filename == __file__
    assert "\n" not in str(told[0].message)


def test_a_script_that_imports_the_old_name_runs_and_is_warned_once() -> None:
    code = "from ridgeline import Request\nprint(Request('a cat').prompt)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "a cat\n"
    assert [line for line in done.stderr.splitlines() if "DeprecationWarning" in line] == [
        "<string>:1: DeprecationWarning: "
        "ridgeline.Request will be removed in the release after 0.1; use ridgeline.DiffusionRequest"
    ]


def test_a_name_that_is_none_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="module 'ridgeline' has no attribute 'Requests'"):
        ridgeline.Requests  # noqa: B018
