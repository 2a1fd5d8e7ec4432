"""Recording of the kernel calls of a step, and replay without the Python code that made them.

In a step of few rows the kernels need less time than Python needs to launch them. The calls are the same from step to
step except for the numbers in memory. So the calls are stored with their arguments, which are addresses, and repeated
with other numbers at the same addresses.
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
"""The maximum number of rows of a recorded decode step: one per sequence, and one more per draft token to verify.

A recording holds the memory of every op. In a step of 64 rows Python takes 17 ms of 280 ms (benchmarks/cpu.md).
"""

CHUNK = 4 << 20
"""The minimum size, in bytes, of the chunks of memory that recorded steps allocate."""
_ALIGNED = 64

_FRESH = {torch.ops.aten.new_empty.default, torch.ops.aten.empty.memory_format}


class RecordingArena:
    """The memory for op results that recorded steps share, since only one runs at a time; its contents never move."""

    def __init__(self, device: str = "cpu") -> None:
        """Create an empty memory arena for recorded steps; the device meta only counts the memory."""
        self._device = device
        self._chunks: list[Tensor] = []
        self._chunk = self._used = 0

    @property
    def nbytes(self) -> int:
        """The number of bytes that the memory arena of recorded steps holds."""
        return sum(map(len, self._chunks))

    def begin(self) -> None:
        """Make all memory of the arena available to a new recording of a step."""
        self._chunk = self._used = 0

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return an unfilled tensor from recorded steps' memory that is valid until another step runs."""
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
    """A dispatch mode that allocates new tensors from an arena and detects PyTorch operations that compute.

    Such an operation cannot be recorded.
    """

    def __init__(self, memory: RecordingArena) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.memory = memory
        self.computes: str | None = None

    @classmethod
    @override
    def _should_skip_dynamo(cls) -> bool:
        """Return False: True would import PyTorch's compiler, which takes seconds in the middle of a step."""
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
    """A recorded decode step, which is replayed as individual kernel calls."""

    def __init__(self, calls: Sequence[Call], result: Tensor) -> None:
        self.calls, self.result = tuple(calls), result

    @override
    def replay(self) -> Tensor:
        """Repeat all kernel calls of a recorded step and return its result.

        Raises:
            MemoryError: If the system refuses working memory to a kernel.
        """
        for function, arguments in self.calls:
            if function(*arguments):
                raise refused()
        return self.result

    @override
    def timed_replay(self, now: Callable[[], float]) -> list[float]:
        moments = [now()]
        for function, arguments in self.calls:
            if function(*arguments):
                raise refused()
            moments.append(now())
        return moments


def record(library: Library, memory: RecordingArena, step: Callable[[], Tensor]) -> tuple[Tensor, CallRecording | None]:
    """Run a step once and record its kernel calls, so that it can be replayed.

    The inputs of the step must stay at their addresses. Its results are in `memory`.

    Returns:
        The result of the step, and the recording, or None if PyTorch computed a part of the step.
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
