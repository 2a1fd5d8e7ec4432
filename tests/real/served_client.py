"""The official client of a server of SmolLM2, for tests of what the server writes."""

from collections.abc import Iterator
from contextlib import contextmanager

import openai

from ridgeline.engine.async_llm import AsyncLLM
from ridgeline.engine.setup import LoadedEngine
from ridgeline.server.admission import RequestQueue
from ridgeline.server.lifecycle import build_service
from ridgeline.server.server_settings import ServerSettings
from server.conftest import running


@contextmanager
def served_client(loaded: LoadedEngine) -> Iterator[openai.OpenAI]:
    """Serve a model as `smollm2` with default limits, and check at the end that no request is left."""
    llm, settings = AsyncLLM(loaded), ServerSettings(models=("smollm2",))
    try:
        with (
            running(build_service(llm, RequestQueue(llm.info, settings), settings), settings) as up,
            openai.OpenAI(base_url=f"{up.url}/v1", api_key="none", max_retries=0) as client,
        ):
            yield client
            up.idle()
    finally:
        llm.close()
