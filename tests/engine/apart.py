"""Engines that compute prompts and engines that answer them, as tests have them: in threads of one process."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.small_models import assert_nothing_held, poison_free_pages
from ridgeline.engine import AsyncLLM, EngineSettings, SamplingParams
from ridgeline.engine.engine import Engine
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.setup import load_engine
from ridgeline.engine.transfer.config import KVTransfer
from ridgeline.engine.worker.engine_messages import PeerChanged, Transferred
from ridgeline.engine.worker.loop import EngineThread

SETTINGS = EngineSettings(kv_bytes=2**22, page_size=4, limits=Limits(tokens=40, requests=6, chunk=11), seed=1)
PROMPTS = [[(7 * i * i + 3 * j) % 40 + 1 for i in range(n)] for j, n in enumerate((60, 5, 33, 100, 61, 34))]
PROMPTS.append([*PROMPTS[3][:70], 1, 2, 3])
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
SAMPLED = SamplingParams(
    temperature=0.9, top_p=0.95, max_tokens=9, seed=3, n=2, ignore_eos=True, repetition_penalty=1.2
)
ASKED = [(prompt, params) for prompt in PROMPTS for params in (GREEDY, SAMPLED)]
PATIENCE = 60


@dataclass
class Answering:
    """The engine that writes answers, and what was told of its prompts."""

    llm: AsyncLLM
    engine: Engine
    told: list[Transferred | PeerChanged] = field(default_factory=list)

    @property
    def came(self) -> list[Transferred]:
        return [each for each in self.told if isinstance(each, Transferred) and not each.reason]

    @property
    def reasons(self) -> list[str]:
        return [each.reason for each in self.told if isinstance(each, Transferred) and each.reason]

    async def all(self, asked: Sequence[tuple[list[int], SamplingParams]], **more: Any) -> list[list[list[int]]]:
        """The tokens of each choice of all requests, asked at once."""
        found = await asyncio.gather(*(self.llm.generate(prompt, params, **more) for prompt, params in asked))
        return [[choice.token_ids for choice in each.choices] for each in found]


@asynccontextmanager
async def engine_of(
    folder: str, settings: EngineSettings = SETTINGS, transfer: KVTransfer | None = None
) -> AsyncIterator[Answering]:
    loaded = load_engine(folder, settings)
    poison_free_pages(loaded.engine)
    async with asyncio.timeout(PATIENCE), AsyncLLM(EngineThread(loaded, transfer)) as llm:
        answering = Answering(llm, loaded.engine)
        llm.transfer_observers.append(answering.told.append)
        yield answering
    assert_nothing_held(loaded.engine)


@asynccontextmanager
async def pair(
    folder: str, tmp_path: Path, settings: EngineSettings = SETTINGS, computing: EngineSettings | None = None
) -> AsyncIterator[tuple[Answering, Answering]]:
    """An engine that computes prompts, and one that answers."""
    address = f"unix:{tmp_path}/kv"
    async with (
        engine_of(folder, computing or settings, KVTransfer(listen=address)) as prompts,
        engine_of(folder, settings, KVTransfer(peers=(address,))) as answers,
    ):
        assert answers.llm.peers[address].up, answers.llm.peers
        yield prompts, answers


def alone(folder: str, settings: EngineSettings, asked: Sequence[tuple[list[int], SamplingParams]]) -> Any:
    async def run() -> Any:
        async with engine_of(folder, settings) as one:
            return await one.all(asked)

    return asyncio.run(run())
