"""The observation of KV transfers from prefill engines: they are counted, and failures are logged."""

import logging

from ridgeline.engine.async_llm import AsyncLLM
from ridgeline.engine.worker.engine_messages import PeerChanged, Transferred
from ridgeline.server.telemetry.engine_metrics import EngineMetrics

logger = logging.getLogger("ridgeline.server")


class TransferLog:
    """An observer of an engine's KV transfers and of its prefill peers."""

    def __init__(self, metrics: EngineMetrics) -> None:
        """Record transfers in the metrics of the engine that receives them."""
        self._metrics = metrics

    def follow(self, llm: AsyncLLM) -> None:
        """Observe this engine from now on, and log the state of its peers."""
        llm.transfer_observers.append(self.told)
        for peer in llm.peers.values():
            self.told(peer)

    def told(self, message: Transferred | PeerChanged) -> None:
        """Record a transfer, and log failures and changes of a peer's state for the operator."""
        if isinstance(message, Transferred):
            self._metrics.transferred(message)
            if message.reason:
                logger.warning("no pages from %s: %s; the prompt is computed here", message.peer, message.reason)
        elif message.up:
            logger.info("prompts are computed at %s; their pages come at %s", message.peer, message.said)
        else:
            logger.warning("no prompts are computed at %s: %s; they are computed here", message.peer, message.said)
