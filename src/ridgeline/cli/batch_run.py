"""`ridgeline run MODEL --input-file IN --output-file OUT` answers requests in OpenAI's batch format.

An interrupted run can be resumed: requests that the output already contains are skipped.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path
from typing import cast

import msgspec
import typer
from rich.progress import Progress, TextColumn

from ridgeline.cli.batch_options import STANDARD, BatchFlags
from ridgeline.cli.console import LINE_EVERY, err, say
from ridgeline.cli.engine_flags import TextFlags
from ridgeline.cli.process_setup import FAILED
from ridgeline.cli.replica_options import check_cores, check_count, split_memory
from ridgeline.engine.async_llm import AsyncLLM, EngineDied
from ridgeline.server.openai_batch import BatchReader, BatchRunner, Tally
from ridgeline.server.server_settings import ServerSettings
from ridgeline.util.files import check_apart, check_writable
from ridgeline.util.host import cores

_PIECE = 1 << 16  # bytes per read of a stream


class _EarlierError(msgspec.Struct, frozen=True):
    line: int = 0


class _EarlierLine(msgspec.Struct, frozen=True):
    """The fields of an earlier output line that matter for resuming."""

    custom_id: str | None
    error: _EarlierError | None


@dataclass(frozen=True, slots=True)
class EarlierOutput:
    """The content of a batch output file from an earlier run, which is resumed."""

    done: frozenset[str] = frozenset()
    """The custom ids of the requests to which the output of the earlier run contains a response or an error."""
    wrong: frozenset[int] = frozenset()
    """The line numbers of invalid requests in the input, as the earlier run reported them."""
    size: int = 0
    """The size in bytes of the complete lines of the earlier output."""


def run_batch(model: str, engine: TextFlags, flags: BatchFlags, adapters: Mapping[str, str]) -> None:
    """Answer the requests of a file or standard input, and write to a file or standard output.

    Args:
        model: The model.
        engine: The engine options.
        flags: The options for the files and the engines.
        adapters: The LoRA adapters by name.

    Raises:
        ValueError: If an option or a file is invalid.
        typer.Exit: With status 1 if the engine stops.
    """
    assert flags.input_file is not None
    check_count(flags.replicas)
    source, target = flags.input_file, flags.output_file or STANDARD
    stream = _input(source)
    earlier = EarlierOutput()
    if target != STANDARD:
        check_apart({"--input-file": Path(source), "--output-file": Path(target)})
        check_writable(Path(target))
        earlier = read_earlier(Path(target))
    if flags.on_ray:
        # The path is resolved because /dev/stdin is another file in another process.
        path = Path(source).resolve() if source != STANDARD and Path(source).is_file() else None
        _answer_on_ray(model, engine, flags, adapters, stream, path, earlier)
        return
    settings = ServerSettings(models=flags.names(model))
    loaded = engine.load(model, adapters=adapters).loaded
    with _output(target, earlier.size) as write:
        asyncio.run(_answer(AsyncLLM(loaded), settings, _lines(stream), write, earlier))


def _answer_on_ray(
    model: str,
    engine: TextFlags,
    flags: BatchFlags,
    adapters: Mapping[str, str],
    stream: BufferedIOBase,
    path: Path | None,
    earlier: EarlierOutput,
) -> None:
    """Answer the requests with several engines, once all lines have been read.

    Args:
        model: The model.
        engine: The engine options.
        flags: The options for the files and the engines.
        adapters: The LoRA adapters by name.
        stream: The opened input.
        path: The path of the input; None if it is not a file.
        earlier: The output of an earlier run.
    """
    from ridgeline.server.replicas.chosen_lines import chosen_lines
    from ridgeline.server.replicas.ray_batch import answer_on_ray, check_ray_data
    from ridgeline.server.replicas.ray_cluster import ray_cluster

    for option, other in (("--device", engine.device != "cpu"), ("--tensor-parallel", engine.tensor_parallel > 1)):
        if other:
            raise ValueError(
                f"--replicas runs a file of requests on engines of one CPU process each; leave out {option}, or "
                "--replicas and --ray-address"
            )
    check_ray_data()
    settings, replicas = engine.settings(model, adapters=adapters), flags.replicas
    threads = engine.threads or max(1, cores() // replicas)
    if flags.ray_address is None:
        check_cores(replicas, threads)
        settings = split_memory(settings, replicas)
    made = {"model": model, "settings": settings, "names": flags.names(model), "threads": threads}
    made |= {"dummy_weights": engine.dummy_weights}
    tally, began = Tally(), time.monotonic()
    died: EngineDied | None = None
    target = flags.output_file or STANDARD
    with _output(target, earlier.size) as write, ray_cluster(flags.ray_address, replicas * threads, 0):
        requests = BatchReader(tally, write, earlier.done, earlier.wrong)
        with chosen_lines(stream, path, lambda line: requests.read(line) is not None) as lines:
            try:
                if lines:
                    answer_on_ray(lines, replicas, threads, made, write, tally)
            except EngineDied as error:
                died = error
                say(_again(error))
    say(summary(tally, time.monotonic() - began))
    if died is not None:
        raise typer.Exit(FAILED)


async def _answer(
    llm: AsyncLLM,
    settings: ServerSettings,
    lines: AsyncIterable[bytes],
    write: Callable[[bytes], None],
    earlier: EarlierOutput,
) -> None:
    batch, began = BatchRunner(llm, settings, write, earlier.done, earlier.wrong), time.monotonic()
    async with llm:
        progress = asyncio.create_task(_show_progress(batch))
        try:
            await batch.run(lines)
        except EngineDied as error:
            say(_again(error))
            raise typer.Exit(FAILED) from None
        finally:
            progress.cancel()
            say(summary(batch.tally, time.monotonic() - began))


def _again(error: EngineDied) -> str:
    return f"{error}; run the same command again to continue"


def summary(tally: Tally, seconds: float) -> str:
    """Return a one-line summary of a batch run: answered and refused requests, tokens and speed."""
    parts = [f"{tally.answered:,} answered"]
    parts += [f"{tally.refused:,} refused"] * (tally.refused > 0)
    parts += [f"{tally.wrong:,} {'line is not a request' if tally.wrong == 1 else 'lines are not requests'}"] * (
        tally.wrong > 0
    )
    parts += [f"{tally.skipped:,} already in the output file"] * (tally.skipped > 0)
    return (
        f"{', '.join(parts)}; {tally.prompt_tokens:,} prompt and {tally.output_tokens:,} output tokens in "
        f"{seconds:.1f} s, {tally.output_tokens / max(seconds, 1e-9):,.1f} output tok/s"
    )


async def _show_progress(batch: BatchRunner) -> None:
    """Show the progress of a run, in place on a terminal, otherwise as a line now and then."""
    began = time.monotonic()
    if not sys.stderr.isatty():
        while True:
            await asyncio.sleep(LINE_EVERY)
            say(summary(batch.tally, time.monotonic() - began))
    with Progress(TextColumn("{task.description}", markup=False), console=err, transient=True) as bar:
        task = bar.add_task("", total=None)
        while True:
            bar.update(task, description=summary(batch.tally, time.monotonic() - began))
            await asyncio.sleep(0.2)


def read_earlier(path: Path) -> EarlierOutput:
    """Read the batch output file of an earlier run, to resume that run.

    An incomplete last line, which was being written when that run ended, does not count.

    Raises:
        ValueError: If the file is not a batch output.
    """
    done, wrong, size = set[str](), set[int](), 0
    if not path.is_file():
        return EarlierOutput()
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                break
            size += len(line)
            try:
                output = msgspec.json.decode(line, type=_EarlierLine)
            except (msgspec.DecodeError, UnicodeDecodeError):
                raise ValueError(
                    f"{path} is not the output of a batch (line {number}); name another --output-file"
                ) from None
            if output.custom_id is not None:
                done.add(output.custom_id)
            elif output.error is not None:
                wrong.add(output.error.line)
    return EarlierOutput(frozenset(done), frozenset(wrong), size)


def _input(source: str) -> BufferedIOBase:
    """Return the stream from which a batch run reads its requests.

    Raises:
        ValueError: If it cannot be opened.
    """
    if source == STANDARD:
        if sys.stdin is None:
            raise ValueError("standard input is closed; name a file with --input-file")
        return cast(BufferedIOBase, sys.stdin.buffer)
    try:
        return Path(source).open("rb")
    except OSError as error:
        raise ValueError(f"{source} cannot be read: {error.strerror}; name a file of requests") from None


async def _lines(stream: BufferedIOBase) -> AsyncIterator[bytes]:
    """Yield the lines of a batch input stream as they arrive.

    While a pipe or terminal has no data, other requests are processed. A file is read at once.
    """
    try:
        await _readable(stream)
    except OSError:  # not a pipe, terminal or socket
        for line in stream:
            yield line
        return
    rest = b""
    while data := stream.read1(_PIECE):
        *whole, rest = (rest + data).split(b"\n")
        for line in whole:
            yield line
        await _readable(stream)
    if rest:
        yield rest


async def _readable(stream: BufferedIOBase) -> None:
    """Wait until reading from the batch input would not block.

    Raises:
        OSError: If the stream is not a pipe, terminal or socket.
    """
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    descriptor = stream.fileno()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


@contextmanager
def _output(target: str, size: int) -> Iterator[Callable[[bytes], None]]:
    """Yield a function that appends lines to the output, each in one piece as far as the system allows."""
    if target == STANDARD:
        yield _print
        return
    with Path(target).open("ab", buffering=0) as file:
        if os.path.isfile(target):
            file.truncate(size)

        def write(line: bytes) -> None:
            while line:
                line = line[file.write(line) :]

        yield write


def _print(line: bytes) -> None:
    sys.stdout.write(line.decode())
    sys.stdout.flush()
