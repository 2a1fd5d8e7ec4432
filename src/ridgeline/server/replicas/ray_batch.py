"""A batch run on Ray Data: engines in actors answer parts of the batch file, each as `BatchRunner` does.

Ray distributes only the byte offsets of lines; an engine requests the lines themselves from an actor next to the file.
So no line is held anywhere before it is processed.
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
"""The most batch-file lines to send to an engine at a time: more than it runs at once, so that it stays busy."""


def check_ray_data() -> None:
    """Raise ValueError if Ray, or a package that Ray Data needs, is not installed."""
    check_ray()
    if find_spec("pyarrow") is None or find_spec("pandas") is None:
        raise ValueError(f"Ray Data needs pyarrow and pandas, which are not installed: run {PIP}")


class _Response(msgspec.Struct, frozen=True):
    status_code: int
    body: msgspec.Raw


class _EngineOutput(msgspec.Struct, frozen=True):
    response: _Response | None


class BatchActor:
    """An actor with an engine that processes parts of a batch.

    If the engine cannot be loaded, the actor returns that error for each part. An actor that raises would be restarted
    by Ray and fill the log.
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
        """Load the engine of the actor.

        Args:
            model: The checkpoint folder or built-in name.
            settings: The settings of the engine.
            names: The model names that requests may use.
            threads: The number of threads; None for the default.
            dummy_weights: Whether to use random weights instead of loading them.
            lines: Returns the lines at given offsets, as `LineReader.lines`.
        """
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
        """Return the outputs of parts of the batch, or why the engine was not loaded."""
        if self._not_loaded is not None:
            return {"output": [b""], "not_loaded": [msgspec.json.encode(self._not_loaded)]}
        outputs: list[bytes] = []
        for places in rows["places"]:
            asyncio.run(BatchRunner(self._llm, self._settings, outputs.append).run(_given(self._lines(places))))
        return {"output": outputs, "not_loaded": [b""] * len(outputs)}

    def close(self) -> None:
        """End the engine; in an actor it ends with the process."""
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
    """Answer the requests of a batch with several engines on the connected Ray cluster.

    Outputs are written and counted as they arrive. A lost actor is restarted, and its lines are answered again.

    Args:
        lines: The requests.
        engines: The number of engines.
        cores: The CPU cores of each engine.
        made: The arguments of `BatchActor`, except `lines`.
        write: Takes each line of the output.
        tally: Counts the outputs.

    Raises:
        ModelRefused: If the model cannot be served.
        ValueError: If no engine can be loaded.
        EngineDied: If Ray gives up, or the file has changed.
    """
    import ray.data
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # its long messages are raised as one error here
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
        raise EngineDied(f"an engine on Ray has stopped: {str(error).strip().splitlines()[-1]}") from None


def take_output(output: bytes, path: str, write: Callable[[bytes], None], tally: Tally) -> None:
    """Write and count an engine's output for one line of the batch file.

    Only valid requests are distributed. If the output says that a line is invalid, the file has changed; its error,
    whose line number counts within a part, is not written.

    Raises:
        EngineDied: If the file has changed.
    """
    response = msgspec.json.decode(output, type=_EngineOutput).response
    if response is None:
        raise EngineDied(f"{path} has changed: do not change it while the batch runs")
    write(output)
    tally.take(response.status_code, bytes(response.body))
