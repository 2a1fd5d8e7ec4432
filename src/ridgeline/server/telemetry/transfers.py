"""What is told of prompts that another engine computes: counted, and logged where they do not come."""

import logging

from ridgeline.engine.async_llm import AsyncLLM
from ridgeline.engine.worker.engine_messages import PeerChanged, Transferred
from ridgeline.server.telemetry.engine_metrics import EngineMetrics

logger = logging.getLogger("ridgeline.server")


class TransferLog:
    """Told what an engine says of the engines that it asks for prompts."""

    def __init__(self, metrics: EngineMetrics) -> None:
        """metrics: of the engine that asks."""
        self._metrics = metrics

    def follow(self, llm: AsyncLLM) -> None:
        """Tell of this engine from now on, and of whom it asks now."""
        llm.transfer_observers.append(self.told)
        for peer in llm.peers.values():
            self.told(peer)

    def told(self, message: Transferred | PeerChanged) -> None:
        """Count it, and say what whoever runs the server should know."""
        if isinstance(message, Transferred):
            self._metrics.transferred(message)
            if message.reason:
                logger.warning("no pages from %s: %s; the prompt is computed here", message.peer, message.reason)
        elif message.up:
            logger.info("prompts are computed at %s; their pages come at %s", message.peer, message.said)
        else:
            logger.warning("no prompts are computed at %s: %s; they are computed here", message.peer, message.said)
