"""The options of `ridgeline run` for a file of requests, which a single prompt reads without importing the server."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ridgeline.cli import options
from ridgeline.cli.flags import panel

STANDARD = "-"
"""The name of standard input or output in place of a file."""

_batch = panel("Batch file")
_batch_file = partial(_batch, metavar="FILE")


@dataclass(frozen=True, slots=True)
class BatchFlags:
    """The options for a file of requests, and for the engines that answer it."""

    input_file: str | None = _batch_file(
        "A file of requests in OpenAI's batch format, one per line; - reads standard input.", "--input-file", "-i"
    )
    output_file: str | None = _batch_file(
        "The file for the responses; standard output by default. Requests whose response is already in the file are "
        "not run again.",
        "--output-file",
        "-o",
    )
    served_model_name: options.ServedModelName = None
    replicas: int = _batch(
        "The number of engines that run the requests, on Ray Data (pip install 'ridgeline[ray]').", default=1
    )
    ray_address: str | None = _batch(
        "The Ray cluster to run the replicas on: auto, or its HOST:PORT. By default a new cluster on this machine.",
        is_eager=True,  # before --threads, which then counts the cores of the replicas' machines
    )

    @property
    def on_ray(self) -> bool:
        """Whether the batch runs on Ray, because of several replicas or a cluster address."""
        return self.replicas != 1 or self.ray_address is not None

    def names(self, model: str) -> tuple[str, ...]:
        """Return the model names that requests may use: the model as given, and a folder's name as in a server."""
        path = Path(model)
        folder = [path.resolve().name] if path.is_dir() else []
        return tuple(self.served_model_name or dict.fromkeys((model, *folder)))
