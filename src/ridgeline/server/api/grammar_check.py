"""Grammars of strangers are tried in a process with little memory and little time before the engine hears of them."""

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import OrderedDict
from contextlib import suppress

import msgspec

from ridgeline.engine.structured import StructuredOutputs
from ridgeline.server.errors import ApiError, invalid
from ridgeline.server.settings import ServerSettings

_CHILD = "ridgeline.server.api.grammar_child"
_PASSED = 1024  # forms that are remembered to have passed
_WAITING = 32  # requests that may wait for the process
_START_SECONDS = 60.0


class GrammarCheck:
    """Tries one form at a time. The process is started by the first one, and replaced when one was too much for it.

    failures: processes that were ended by a form.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._process: Process | None = None
        self._lock = asyncio.Lock()
        self._waiting = 0
        self._passed: OrderedDict[StructuredOutputs, None] = OrderedDict()
        self.failures = 0

    async def check(self, form: StructuredOutputs, param: str) -> None:
        """Raises ApiError naming the field where a form does not compile, or not within its time and memory."""
        if form in self._passed:
            self._passed.move_to_end(form)
            return
        if self._waiting >= _WAITING:
            raise ApiError(
                429,
                "too many structured outputs are being tried; try again",
                kind="rate_limit_error",
                code="grammar_queue_full",
                headers={"retry-after": "1"},
            )
        self._waiting += 1
        try:
            async with self._lock:
                reason = await self._ask(form)
        finally:
            self._waiting -= 1
        if reason is not None:
            raise invalid(f"{param}: it cannot be followed: {reason}", param, code="invalid_grammar")
        self._passed[form] = None
        if len(self._passed) > _PASSED:
            self._passed.popitem(last=False)

    async def aclose(self) -> None:
        """End the process."""
        async with self._lock:
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
            if not whole:  # also where whoever asked has gone: nobody may read the answer to another's question
                self.failures += 1
                await self._end()
        if not whole:
            return "it takes more memory to compile than there is for it"
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
                if ready != b"ready\n":  # or whoever asked has gone, and would leave its first line for the next
                    await self._end()
            if not ready:
                raise ApiError(503, "structured outputs cannot be tried now", kind="server_error", code="grammar_check")
        return self._process

    async def _end(self) -> None:
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        self._process = None
