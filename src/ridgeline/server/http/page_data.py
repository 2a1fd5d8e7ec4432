"""The page's data over HTTP: cards, models, and prices as tables, each made when it is first asked for; those of a
config that somebody sends are made each time, and kept by nobody.
"""

import asyncio
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ridgeline.learn.page.assets import Asset
from ridgeline.learn.page.data import config_table, device_data, models_data, stored_of, table_data, table_name, writers
from ridgeline.learn.page.model_tables import StoredModel
from ridgeline.server.errors import ApiError, invalid
from ridgeline.server.http.auth import check_client
from ridgeline.server.http.body import parse_object_async, read_bytes
from ridgeline.server.http.page_routes import asset_response
from ridgeline.server.server_settings import ServerSettings

_KEPT = "private, no-cache"
_TABLES = 256
"""Tables that are kept, of some 10 KB."""

_WAITING = 16
"""Requests that wait for a table, of which one is made at a time: it takes the interpreter for up to seconds."""

_CONFIG_BYTES = 1 << 20
"""Largest config.json that is taken: ten times the longest of a release."""

_Made = TypeVar("_Made")


class PageData:
    """The data of a server's page. models: those that are served and write text, what opens each by its name."""

    def __init__(self, models: Mapping[str, str], settings: ServerSettings) -> None:
        self._models, self._settings, self._made = dict(models), settings, OrderedDict[str, Asset]()
        self._turn, self._waiting = asyncio.Lock(), 0

    def routes(self) -> Sequence[BaseRoute]:
        """`/page/cards.json`, `/page/models.json`, `/page/tables/MODEL.json`, `/page/tables` to send a config to;
        before those of the page's files.
        """
        return [
            Route("/page/cards.json", self._cards),
            Route("/page/models.json", self._list),
            Route("/page/tables/{model:path}.json", self._table),
            Route("/page/tables", self._given, methods=["POST"]),
        ]

    async def _cards(self, request: Request) -> Response:
        return await self._answer(request, "cards", device_data)

    async def _list(self, request: Request) -> Response:
        return await self._answer(request, "models", lambda: models_data(served=self._models))

    async def _table(self, request: Request) -> Response:
        name = request.path_params["model"]
        if name not in self._models and name not in await asyncio.to_thread(writers):
            raise ApiError(404, "there is no such model; /page/models.json lists them", code="model_not_found")
        stored = _stored(request)
        opened = self._models.get(name, name)
        return await self._answer(request, table_name(name, stored), lambda: table_data(name, opened, stored))

    async def _answer(self, request: Request, name: str, make: Callable[[], Mapping[str, object]]) -> Response:
        """Data that was made before, or is now. Raises ApiError."""
        if name not in self._made:
            await self._in_turn(lambda: self._make(name, make))
        self._made.move_to_end(name)
        return asset_response(request, self._made[name], _KEPT)

    async def _given(self, request: Request) -> Response:
        """The table of the model whose config.json is the body. Raises ApiError."""
        check_client(request, self._settings, "have a config priced")
        stored = _stored(request)
        most = min(_CONFIG_BYTES, self._settings.body_bytes)
        body = await read_bytes(request.headers, request.stream(), most)
        values = await parse_object_async(body, self._settings.json_depth)
        table = await self._in_turn(lambda: asyncio.to_thread(config_table, values, stored))
        written = json.dumps(table, separators=(",", ":"))  # numbers of an absurd model have more than 64 bits
        return Response(written, headers={"cache-control": "no-store"}, media_type="application/json")

    async def _make(self, name: str, make: Callable[[], Mapping[str, object]]) -> None:
        if name not in self._made:
            self._keep(name, await asyncio.to_thread(make))

    async def _in_turn(self, make: Callable[[], Awaitable[_Made]]) -> _Made:
        """What is made when those before it are. Raises ApiError."""
        if self._waiting >= _WAITING:
            raise ApiError(
                429, "too many tables are asked for at once; try again", kind="rate_limit_error", code="queue_tables"
            )
        self._waiting += 1
        try:
            async with self._turn:
                return await make()
        except ValueError as error:
            raise invalid(str(error)) from None
        finally:
            self._waiting -= 1

    def _keep(self, name: str, data: Mapping[str, object]) -> None:
        self._made[name] = Asset("data.json", msgspec.json.encode(data))
        if len(self._made) > _TABLES:
            self._made.popitem(last=False)


def _stored(request: Request) -> StoredModel:
    """How the model of a request is to be stored. Raises ApiError."""
    try:
        return stored_of(request.url.query)
    except ValueError as error:
        raise invalid(str(error)) from None
