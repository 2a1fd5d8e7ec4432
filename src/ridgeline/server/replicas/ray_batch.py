"""A batch on Ray Data: its lines are dealt to engines in actors, each of which answers them as `BatchRunner` does.

What is dealt are parts of a file, by the places of their lines; an engine asks an actor beside the file for those that
it is given. So lines are nowhere but where they are being answered.
"""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from importlib.util import find_spec
from typing import Any

import msgspec

from ridgeline.core.models.common.fields import ModelRefused
from ridgeline.engine.async_llm import AsyncLLM, EngineDied
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.setup import load_with_threads
from ridgeline.engine.worker.engine_process import NotLoaded
from ridgeline.server.openai_batch import BatchRunner, Tally
from ridgeline.server.replicas.chosen_lines import ChosenLines, LineReader
from ridgeline.server.replicas.ray_cluster import PIP, check_ray
from ridgeline.server.server_settings import ServerSettings

_MOST_LINES = 1024
"""Lines that an engine is given together: more than it runs at a time, so that its places are rarely empty."""


def check_ray_data() -> None:
    """Raises ValueError where Ray, or what Ray Data needs, is not installed."""
    check_ray()
    if find_spec("pyarrow") is None or find_spec("pandas") is None:
        raise ValueError(f"Ray Data needs pyarrow and pandas, which are not installed: {PIP}")


class _Response(msgspec.Struct, frozen=True):
    status_code: int
    body: msgspec.Raw


class _EngineOutput(msgspec.Struct, frozen=True):
    response: _Response | None


class BatchActor:
    """What runs in an actor: an engine, for as many lines as come. One that cannot be loaded says so for each of them:
    Ray would try again to make an actor that raises, and tell of it in pages.
    """

    def __init__(
        self,
        model: str,
        settings: EngineSettings,
        names: Sequence[str],
        threads: int | None,
        *,
        dummy_weights: bool,
        lines: Callable[[bytes], Iterable[bytes]],
    ) -> None:
        """lines: as LineReader.lines."""
        import torch

        self._lines = lines
        self._not_loaded: NotLoaded | None = None
        try:
            loaded, own = load_with_threads(model, settings, dummy_weights=dummy_weights, threads=threads)
        except ValueError as error:
            self._not_loaded = NotLoaded(str(error), isinstance(error, ModelRefused))
            return
        torch.set_num_threads(own)
        self._llm, self._settings = AsyncLLM(loaded), ServerSettings(models=tuple(names))

    def __call__(self, rows: dict[str, Any]) -> dict[str, list[bytes]]:
        """The outputs of parts of the lines, or why there are none."""
        if self._not_loaded is not None:
            return {"output": [b""], "not_loaded": [msgspec.json.encode(self._not_loaded)]}
        outputs: list[bytes] = []
        for places in rows["places"]:
            asyncio.run(BatchRunner(self._llm, self._settings, outputs.append).run(_given(self._lines(places))))
        return {"output": outputs, "not_loaded": [b""] * len(outputs)}

    def close(self) -> None:
        """End the engine; in an actor it ends with that."""
        self._llm.close()


async def _given(lines: Iterable[bytes]) -> AsyncIterator[bytes]:
    for line in lines:
        yield line


def answer_on_ray(
    lines: ChosenLines,
    engines: int,
    cores: int,
    made: dict[str, Any],
    write: Callable[[bytes], None],
    tally: Tally,
) -> None:
    """Have requests answered by so many engines, on a cluster that this process is connected to. cores: of each
    engine. made: as Answering is made. Outputs are written as they come, and counted. An actor that is lost is started
    again, and its lines are answered again. Raises ModelRefused, ValueError where no engine can be loaded, EngineDied
    where Ray gives up or the file is not what it was.
    """
    import ray.data
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # what it would say in pages is raised
    ray.data.DataContext.get_current().enable_progress_bars = False
    size = max(1, min(_MOST_LINES, math.ceil(len(lines) / (2 * engines))))
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    again = {"max_restarts": -1, "max_task_retries": -1}
    reader = ray.remote(LineReader).options(num_cpus=0, scheduling_strategy=here, **again).remote(lines.path)

    def given(places: bytes) -> list[bytes]:
        part: list[bytes] = ray.get(reader.lines.remote(places))
        return part

    parts = [{"places": lines.part(first, first + size)} for first in range(0, len(lines), size)]
    answered = ray.data.from_items(parts, override_num_blocks=len(parts)).map_batches(
        BatchActor,
        fn_constructor_kwargs={**made, "lines": given},
        batch_size=1,
        concurrency=min(engines, len(parts)),
        num_cpus=cores,
    )
    try:
        for row in answered.iter_rows():
            if row["not_loaded"]:
                raise msgspec.json.decode(row["not_loaded"], type=NotLoaded).error()
            take_output(row["output"], lines.path, write, tally)
    except RayError as error:
        raise EngineDied(f"an engine ended on Ray: {str(error).strip().splitlines()[-1]}") from None


def take_output(output: bytes, path: str, write: Callable[[bytes], None], tally: Tally) -> None:
    """Write what an engine gave for a line of a file, and count it. Only requests are dealt, so a line that is none by
    now has been changed, and what is said of it, with its number in a part, is not written. Raises EngineDied.
    """
    response = msgspec.json.decode(output, type=_EngineOutput).response
    if response is None:
        raise EngineDied(f"{path} is not what it was; leave it as it is until it is answered")
    write(output)
    tally.take(response.status_code, bytes(response.body))
