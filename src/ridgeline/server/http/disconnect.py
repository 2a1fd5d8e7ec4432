"""A client that leaves: what was under way for it ends."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.types import Receive

GONE = 499
"""The status of a request whose client left before an answer began: nginx's, for the log alone."""

_Result = TypeVar("_Result")


class ClientGone(Exception):
    """The client has closed the connection, not only its sending side, so that nobody reads the response."""


async def unless_gone(receive: Receive, work: Awaitable[_Result]) -> _Result:
    """What `work` gives; it is cancelled as soon as the client is gone. Raises ClientGone then.

    The body has been read: what comes next is the end of the connection.
    """
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(until_gone(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        await end(task, gone)


async def until_gone(receive: Receive) -> None:
    """Wait for the client to close the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def end(*tasks: "asyncio.Future[_Result] | asyncio.Future[None]") -> None:
    """Cancel what has not ended, and wait until it has."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
