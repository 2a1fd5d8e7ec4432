"""LoopedEngine: an engine that a ModelLoop steps, beside other models."""

from collections.abc import Callable
from functools import partial

import msgspec

from ridgeline.engine.setup import Loaded
from ridgeline.engine.worker.inspector import inspection
from ridgeline.engine.worker.loop import EngineLoop
from ridgeline.engine.worker.messages import Died, FromEngine, ToEngine
from ridgeline.roofline.device import Device
from ridgeline.server.model_loop import ModelLoop


class LoopedEngine:
    """A loaded engine as AsyncLLM has one: its Host. What it says is said in the loop's thread.

    To the loop it is one party, however many requests it has: they run in one step.
    """

    def __init__(self, loaded: Loaded, device: Device, loop: ModelLoop, inspector: str = "") -> None:
        """device: that steps are priced on. loop: closed with the engine. inspector: as engine.worker.process.Start."""
        self.texts = loaded.texts
        self.info = msgspec.structs.replace(loaded.info(device), threads=loop.threads)
        self._loaded, self._device, self._loop, self._inspector = loaded, loaded.joined(device), loop, inspector
        self._engine: EngineLoop
        self._tell: Callable[[FromEngine], None]

    def connect(self, tell: Callable[[FromEngine], None]) -> None:
        """As Host.connect."""
        self._tell = tell
        inspect = inspection(self._inspector, self._loaded, self._device)
        self._engine = EngineLoop(self._loaded.engine, tell, self._loaded.price, self._device, inspect)
        self._loop.join(self)

    def send(self, message: ToEngine) -> None:
        """As Host.send."""
        self._loop.ask(partial(self._engine.take, message))

    def close(self) -> None:
        """As Host.close. The loop ends, and whatever else it steps."""
        self._loop.close()

    # -- in the loop's thread: a Party ---------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """As Party.busy."""
        return self._loaded.engine.has_work

    def step(self) -> float:
        """As Party.step. A step that failed has no price: it ends a request, or finds out whose fault it was."""
        report = self._engine.step()
        return 0.0 if report is None or report.predicted is None else report.predicted

    def gone(self, reason: str) -> None:
        """As Party.gone."""
        self._tell(Died(reason))
