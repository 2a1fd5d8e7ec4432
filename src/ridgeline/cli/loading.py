"""A progress bar on stderr while weights load."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from ridgeline.checkpoint.fill import Progress as Callback

err = Console(stderr=True, highlight=False, soft_wrap=True)


@contextmanager
def loading_bar(what: str) -> Iterator[Callback | None]:
    """Yields what a loader calls with (bytes done, bytes in all); None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (
        TextColumn("loading {task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
