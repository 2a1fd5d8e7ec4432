"""ServedDisaggregated: a language model whose prompts engines of their own compute, all on this machine.

The front talks to the engines that write answers alone; those ask the others for prompts (engine/transfer).
"""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from typing_extensions import override

from ridgeline.engine.async_llm import AsyncLLM
from ridgeline.engine.engine_settings import EngineSettings
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
    """What is served. one: the model as one engine of either sort has it. prompts: engines that compute those.
    answering: what is served of the engines that write answers, given whom they ask. timeout: as KVTransfer.
    """

    one: ServedLLM
    prompts: int
    answering: Callable[[KVTransfer, Sequence[AsyncLLM]], Servable[Any]]
    timeout: float

    @property
    def name(self) -> str:
        """The model's."""
        return self.one.name

    async def start(self) -> "DisaggregatedEngines":
        """All engines, ready. Errors are those of EngineProcess.start; then none runs."""
        async with AsyncExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="ridgeline-")))  # of mode 0700
            addresses = [f"unix:{folder / f'prompts-{number}'}" for number in range(self.prompts)]
            logger.info("loading %s to compute prompts, engines: %d", self.name, self.prompts)
            computing = [await stack.enter_async_context(await self._computing(each)) for each in addresses]
            answering = self.answering(KVTransfer(peers=tuple(addresses), timeout=self.timeout), computing)
            model = await stack.enter_async_context(await answering.start())
            return DisaggregatedEngines(answering, model, stack.pop_all())

    async def _computing(self, address: str) -> AsyncLLM:
        """An engine that computes prompts."""
        one = self.one
        process = await EngineProcess.start(
            one.model,
            replace(one.settings or EngineSettings(), whole_context=True, speculation=None),
            dummy_weights=one.dummy_weights,
            threads=one.threads,
            device=None if one.device is None else await asyncio.to_thread(one.device),
            restarts=math.inf,
            transfer=KVTransfer(listen=address),
        )
        return _PrefillEngine(process, address)

    @asynccontextmanager
    async def serving(self, apart: "DisaggregatedEngines", settings: ServerSettings) -> AsyncIterator[ServingContext]:
        """The engines that write answers, behind their routes."""
        async with apart.answering.serving(apart.model, settings) as serving:
            yield serving


@dataclass(frozen=True, slots=True)
class DisaggregatedEngines:
    """Engines that run: `model` is what answers. Use `async with`."""

    answering: Servable[Any]
    model: Any
    _stack: AsyncExitStack = field(repr=False)

    @property
    def engines(self) -> EngineClient:
        """Those that write answers, as a service has them."""
        engines: EngineClient = self.model.fleet if isinstance(self.model, StartedReplicas) else self.model
        return engines

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()


class _PrefillEngine(AsyncLLM):
    """An engine that nobody talks to: its death and its return are logged."""

    def __init__(self, process: EngineProcess, address: str) -> None:
        self._address = address
        super().__init__(process)

    @override
    def _receive(self, message: FromEngine) -> None:
        super()._receive(message)
        if isinstance(message, Died) and not message.final:
            why = message.reason
            logger.warning(
                "the engine at %s, which computes prompts, died: %s; it is started again", self._address, why
            )
        elif isinstance(message, EngineReady):
            logger.warning("the engine at %s, which computes prompts, is back", self._address)
