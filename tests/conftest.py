"""Fixtures of all tests."""

import logging
import os
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from ridgeline.backends.cpu.library import Library, library
from ridgeline.insight.calibrate import estimate
from ridgeline.insight.calibrate.estimate import probed
from ridgeline.insight.calibrate.timer import Timer
from ridgeline.price.device import Device
from support.kernels import EMULATED_SETS, SETS, back_to_the_best, load

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # kernels for cards; before anything imports triton
# One thread: small tensors gain nothing from more, and what else runs on the machine would decide how long tests take.
torch.set_num_threads(1)
# A shell that starts them in the background has them ignore Ctrl-C, of which several are about.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# No deadline for an example, for the same reason.
settings.register_profile("ridgeline", deadline=None)
settings.load_profile("ridgeline")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data that RIDGELINE_DATA names; skips where it names none."""
    stated = os.environ.get("RIDGELINE_DATA")
    if not stated:
        pytest.skip("RIDGELINE_DATA names no folder of real data")
    folder = Path(stated)
    assert folder.is_dir(), f"RIDGELINE_DATA is {folder}, which is no folder"
    return folder


@pytest.fixture(scope="session")
def speech_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small random speech model; nothing is to be written there."""
    from speech.folders import write_speech_model  # imports what few tests need

    folder = tmp_path_factory.mktemp("whisper")
    write_speech_model(folder)
    return folder


@pytest.fixture(scope="session")
def z_image_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small random pipeline of pictures; nothing is to be written there."""
    from support.pipelines import z_image  # imports what few tests need

    folder = tmp_path_factory.mktemp("pipelines") / "z-image"
    z_image(folder)
    return folder


@pytest.fixture
def torch_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without our kernels: what a test sees is what torch dispatches."""
    monkeypatch.setenv("RIDGELINE_KERNELS", "off")
    library.cache_clear()
    yield
    library.cache_clear()


@pytest.fixture(params=[*SETS, *EMULATED_SETS])
def kernels(request: pytest.FixtureRequest) -> Iterator[Library]:
    """Load our kernels for each instruction set that this processor runs or that is emulated, on one thread."""
    yield load(request.param)
    back_to_the_best()


@pytest.fixture(autouse=True)
def logs_as_they_were() -> Iterator[None]:
    """A command that is run in this process sends logs to a stderr that is closed when its test is over."""
    loggers = [logging.getLogger(name) for name in ("ridgeline", "uvicorn")]
    before = [(logger.handlers, logger.propagate, logger.level) for logger in loggers]
    yield
    for logger, (handlers, propagate, level) in zip(loggers, before, strict=True):
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


@cache
def _probed(threads: int, seconds: float) -> Device:
    return probed(Timer(torch.device("cpu"), threads), seconds)


@pytest.fixture(autouse=True)
def one_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is not calibrated is probed once for all tests, whatever cache folder they have."""
    monkeypatch.setattr(estimate, "probed", lambda timer, seconds: _probed(timer.threads, seconds))
