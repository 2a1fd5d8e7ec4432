"""Disaggregated serving of a language model: separate prefill and decode engines on one machine.

The server talks to the decode engines only; these fetch the KV cache of prompts from the prefill engines
(engine/transfer).
"""

import logging
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from msgspec import structs
from typing_extensions import override

from ridgeline.engine.async_llm import AsyncLLM
from ridgeline.engine.transfer.config import KVTransfer
from ridgeline.engine.worker.engine_messages import Died, EngineReady, FromEngine
from ridgeline.engine.worker.engine_process import EngineProcess
from ridgeline.server.lifecycle import Servable, ServedLLM, ServingContext
from ridgeline.server.replicas.served_replicas import StartedReplicas
from ridgeline.server.server_settings import ServerSettings
from ridgeline.server.service import EngineClient

logger = logging.getLogger("ridgeline.server")


@dataclass(frozen=True, slots=True)
class ServedDisaggregated:
    """A language model to serve with separate prefill and decode engines."""

    engine_options: ServedLLM
    """The model and the options of a single engine, the same for prefill and decode."""
    prefill_engines: int
    """The number of prefill engines."""
    decode_side: Callable[[KVTransfer, Sequence[AsyncLLM]], Servable[Any]]
    """The function that returns the decode side to serve, given its transfer configuration and the prefill engines."""
    timeout: float
    """The timeout of a KV transfer in seconds, as in `KVTransfer`."""

    @property
    def name(self) -> str:
        """The name of the model."""
        return self.engine_options.name

    async def start(self) -> "DisaggregatedEngines":
        """Start all prefill and decode engines; if one fails, stop the others.

        It raises the errors of `EngineProcess.start`.
        """
        async with AsyncExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="ridgeline-")))  # of mode 0700
            addresses = [f"unix:{folder / f'prompts-{number}'}" for number in range(self.prefill_engines)]
            logger.info("loading %s for prefill, engines: %d", self.name, self.prefill_engines)
            computing = [await stack.enter_async_context(await self._computing(each)) for each in addresses]
            answering = self.decode_side(KVTransfer(peers=tuple(addresses), timeout=self.timeout), computing)
            model = await stack.enter_async_context(await answering.start())
            return DisaggregatedEngines(answering, model, stack.pop_all())

    async def _computing(self, address: str) -> AsyncLLM:
        """Start and return a prefill engine that listens for KV requests at an address."""
        start = await self.engine_options.engine_start()
        settings = replace(start.settings, speculation=None)
        start = structs.replace(start, settings=settings, inspector="", transfer=KVTransfer(listen=address))
        return _PrefillEngine(await EngineProcess.start(start, restarts=math.inf), address)

    @asynccontextmanager
    async def serving(self, apart: "DisaggregatedEngines", settings: ServerSettings) -> AsyncIterator[ServingContext]:
        """Yield the application of the decode engines while it serves requests."""
        async with apart.answering.serving(apart.model, settings) as serving:
            yield serving


@dataclass(frozen=True, slots=True)
class DisaggregatedEngines:
    """The running engines of a disaggregated server; `model` is the decode side. Use it with `async with`."""

    answering: Servable[Any]
    model: Any
    _stack: AsyncExitStack = field(repr=False)

    @property
    def engines(self) -> EngineClient:
        """The decode engines as the client of a service."""
        engines: EngineClient = self.model.fleet if isinstance(self.model, StartedReplicas) else self.model
        return engines

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()


class _PrefillEngine(AsyncLLM):
    """A prefill engine, to which no service submits requests; it logs when its process dies and when it is back."""

    def __init__(self, process: EngineProcess, address: str) -> None:
        self._address = address
        super().__init__(process)

    @override
    def _receive(self, message: FromEngine) -> None:
        super()._receive(message)
        if isinstance(message, Died) and not message.final:
            why = message.reason
            logger.warning("the prefill engine at %s died: %s; it is restarting", self._address, why)
        elif isinstance(message, EngineReady):
            logger.warning("the prefill engine at %s is running again", self._address)
