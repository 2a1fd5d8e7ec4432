"""The check of untrusted grammars in a child process with little memory and time, before the engine gets them."""

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import OrderedDict
from contextlib import suppress

import msgspec

from ridgeline.engine.structured_output_params import StructuredOutputs
from ridgeline.server.admission import shutting_down
from ridgeline.server.errors import ApiError, invalid
from ridgeline.server.server_settings import ServerSettings

_CHILD = "ridgeline.server.routes.grammar_child"
_PASSED = 1024  # constraints remembered as valid
_WAITING = 32  # constraints that may wait for the process
_START_SECONDS = 60.0


class GrammarCheck:
    """A checker that compiles structured-output constraints on trial, one at a time, in a child process.

    Concurrent requests with the same constraint share its trial, and the latest constraints that passed are not tried
    again. The first trial starts the process, which is replaced after a constraint exceeds its limits. `failures`
    counts the processes that were killed during a trial.
    """

    def __init__(self, settings: ServerSettings, most_waiting: float = _WAITING) -> None:
        """Prepare a grammar checker without starting its process.

        Args:
            settings: The time and memory limits.
            most_waiting: The most constraints that may wait for their trial; further ones are rejected.
        """
        self._settings, self._most_waiting = settings, most_waiting
        self._process: Process | None = None
        self._lock = asyncio.Lock()
        self._trials: dict[StructuredOutputs, asyncio.Task[str | None]] = {}
        self._passed: OrderedDict[StructuredOutputs, None] = OrderedDict()
        self.failures = 0

    async def check(self, form: StructuredOutputs, param: str) -> None:
        """Check that a constraint compiles within its time and memory.

        Raises:
            ApiError: If it does not (the error names the field `param`), if too many constraints wait, or if the child
                process cannot start or the server shuts down.
        """
        if form in self._passed:
            self._passed.move_to_end(form)
            return
        trial = self._trials.get(form) or self._begin(form)
        try:
            reason = await asyncio.shield(trial)
        except asyncio.CancelledError:
            if trial.cancelled():
                raise shutting_down() from None
            raise
        if reason is not None:
            raise invalid(f"{param}: it cannot be enforced: {reason}", param, code="invalid_grammar")

    def _begin(self, form: StructuredOutputs) -> "asyncio.Task[str | None]":
        """Start the trial of a constraint, which continues even if its caller leaves.

        Raises:
            ApiError: If too many trials wait.
        """
        if len(self._trials) >= self._most_waiting:
            raise ApiError(
                429,
                "too many structured outputs are being checked: try again",
                code="grammar_queue_full",
                headers={"retry-after": "1"},
            )
        self._trials[form] = trial = asyncio.create_task(self._try(form))
        return trial

    async def _try(self, form: StructuredOutputs) -> str | None:
        """Return why a constraint cannot be enforced; None if it can, which is remembered."""
        try:
            async with self._lock:
                reason = await self._ask(form)
        finally:
            self._trials.pop(form, None)
        if reason is None:
            self._passed[form] = None
            if len(self._passed) > _PASSED:
                self._passed.popitem(last=False)
        return reason

    async def aclose(self) -> None:
        """Cancel all trials of grammars and end the child process."""
        trials, self._trials = list(self._trials.values()), {}
        for trial in trials:
            trial.cancel()
        await asyncio.gather(*trials, return_exceptions=True)
        await self._end()

    async def _ask(self, form: StructuredOutputs) -> str | None:
        process = await self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        whole = False
        try:
            process.stdin.write(msgspec.json.encode(form) + b"\n")
            line = await asyncio.wait_for(process.stdout.readline(), self._settings.compile_seconds)
            whole = line.endswith(b"\n")
        except TimeoutError:
            return f"it takes more than {self._settings.compile_seconds:g} s to compile"
        finally:
            if not whole:  # also after cancellation: the next trial must not read this one's answer
                self.failures += 1
                await self._end()
        if not whole:
            return "it needs more memory to compile than the server allows"
        return msgspec.json.decode(line, type=str | None)

    async def _started(self) -> Process:
        if self._process is None or self._process.returncode is not None:
            limit = str(self._settings.compile_bytes)
            self._process = process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", _CHILD, limit, stdin=PIPE, stdout=PIPE, stderr=DEVNULL
            )
            assert process.stdout is not None
            ready = b""
            try:
                ready = await asyncio.wait_for(process.stdout.readline(), _START_SECONDS)
            finally:
                if ready != b"ready\n":  # also after cancellation, which would leave this line for the next trial
                    await self._end()
            if not ready:
                raise ApiError(503, "structured outputs cannot be checked now: try again", code="grammar_check")
        return self._process

    async def _end(self) -> None:
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        self._process = None
