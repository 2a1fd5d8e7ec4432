"""Recording: the kernel calls of a step, made again without the Python that led to them.

A step of few rows takes its kernels less time than Python takes to ask for them. What it asks for is the same from step
to step, but for the numbers in memory: so the calls are kept with their arguments, which are addresses, and made again
over other numbers at the same addresses.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from ridgeline.backends.cpu.library import Call, Library, refused
from ridgeline.core.ops.step_graphs import StepGraph

MAX_RECORDED_ROWS = 64
"""Rows of a decode step that is recorded: one for each sequence, and one more for each guess that it verifies. A
recording keeps the memory of every op; Python takes 17 ms of a step of 64 rows, which takes 280 (benchmarks/cpu.md)."""

CHUNK = 4 << 20
_ALIGNED = 64

_FRESH = {torch.ops.aten.new_empty.default, torch.ops.aten.empty.memory_format}


class RecordingArena:
    """Memory of recorded steps, one of which runs at a time: they share it. Nothing in it moves."""

    def __init__(self, device: str = "cpu") -> None:
        """device: meta for memory that is only counted."""
        self._device = device
        self._chunks: list[Tensor] = []
        self._chunk = self._used = 0

    @property
    def nbytes(self) -> int:
        """Bytes that it holds on to."""
        return sum(map(len, self._chunks))

    def begin(self) -> None:
        """A step is recorded: all of the memory is its to use."""
        self._chunk = self._used = 0

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """An unfilled tensor, which lasts until another step runs."""
        count = 1
        for size in shape:
            count *= size
        nbytes = -(-count * dtype.itemsize // _ALIGNED) * _ALIGNED
        while self._chunk < len(self._chunks) and self._used + nbytes > len(self._chunks[self._chunk]):
            self._chunk, self._used = self._chunk + 1, 0
        if self._chunk == len(self._chunks):
            self._chunks.append(torch.empty(max(nbytes, CHUNK), dtype=torch.uint8, device=self._device))
        start, self._used = self._used, self._used + nbytes
        return self._chunks[self._chunk][start : start + count * dtype.itemsize].view(dtype).view(*shape)


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Gives fresh tensors from a Memory, and notes an operation that computes, which no recording has."""

    def __init__(self, memory: RecordingArena) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.memory = memory
        self.computes: str | None = None

    @classmethod
    @override
    def _should_skip_dynamo(cls) -> bool:
        """No: what keeps torch's compiler out of here is imported with it, for seconds, in the middle of a step."""
        return False

    @override
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _FRESH:
            shape, dtype = args[-1], kwargs.get("dtype")
            like = args[0].dtype if func is torch.ops.aten.new_empty.default else torch.get_default_dtype()
            return self.memory.take(shape, dtype or like)
        if not func.is_view:
            self.computes = str(func)
        return func(*args, **kwargs)


class CallRecording(StepGraph):
    """A step that is replayed as its kernel calls, one by one."""

    def __init__(self, calls: Sequence[Call], result: Tensor) -> None:
        self.calls, self.result = tuple(calls), result

    @override
    def again(self) -> Tensor:
        """Make all calls again, and return the result. Raises MemoryError, as a kernel's function does."""
        for function, arguments in self.calls:
            if function(*arguments):
                raise refused()
        return self.result

    @override
    def moments(self, now: Callable[[], float]) -> list[float]:
        moments = [now()]
        for function, arguments in self.calls:
            if function(*arguments):
                raise refused()
            moments.append(now())
        return moments


def record(library: Library, memory: RecordingArena, step: Callable[[], Tensor]) -> tuple[Tensor, CallRecording | None]:
    """Run a step: its result, and a recording of it if it computes with our kernels alone. What it reads must stay
    where it is; what it makes is in `memory`.
    """
    memory.begin()
    watch, calls = _Watch(memory), list[Call]()
    library.recording = calls
    try:
        with watch:
            result = step()
    finally:
        library.recording = None
    return result, CallRecording(calls, result) if watch.computes is None else None
