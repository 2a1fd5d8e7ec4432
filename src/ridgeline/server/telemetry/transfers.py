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
        llm.transfer_observers.append(self.on_message)
        for peer in llm.peers.values():
            self.on_message(peer)

    def on_message(self, message: Transferred | PeerChanged) -> None:
        """Record a transfer, and log failures and changes of a peer's state for the operator."""
        if isinstance(message, Transferred):
            self._metrics.transferred(message)
            if message.reason:
                logger.warning(
                    "no KV pages came from %s: %s; this engine computes the prompt", message.peer, message.reason
                )
        elif message.up:
            logger.info(
                "the prefill engine at %s is connected; its KV pages arrive at %s", message.peer, message.description
            )
        else:
            logger.warning(
                "the prefill engine at %s is not available: %s; this engine computes the prompts",
                message.peer,
                message.description,
            )
