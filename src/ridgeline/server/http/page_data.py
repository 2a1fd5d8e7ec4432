"""The JSON data of the web page: devices, models and price tables.

Each is computed at its first request and cached; a table of a config.json that a client sends is computed every time
and not stored.
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
from ridgeline.server.errors import ApiError, as_invalid
from ridgeline.server.http.auth import check_client
from ridgeline.server.http.body import parse_object, read_bytes
from ridgeline.server.http.page_routes import asset_response
from ridgeline.server.server_settings import ServerSettings

_KEPT = "private, no-cache"
_TABLES = 256
"""The most entries in the cache, nearly all of them price tables of about 10 KB each."""

_WAITING = 16
"""The most requests whose data is being computed or waits for that.

Data is computed for one request at a time, because a price table holds the interpreter for up to seconds.
"""

_CONFIG_BYTES = 1 << 20
"""The most bytes of a config.json: ten times the longest of a released model."""

_Made = TypeVar("_Made")


class PageData:
    """The HTTP handlers of the web page's data: devices, models and price tables."""

    def __init__(self, models: Mapping[str, str], settings: ServerSettings) -> None:
        """Create the handlers with an empty cache.

        Args:
            models: The sources of the served text models, by name.
            settings: The limits of the server.
        """
        self._models, self._settings, self._made = dict(models), settings, OrderedDict[str, Asset]()
        self._turn, self._waiting = asyncio.Lock(), 0

    def routes(self) -> Sequence[BaseRoute]:
        """Return the routes of the web page's data; they must precede the routes of its files.

        They are `/page/cards.json`, `/page/models.json`, `/page/tables/MODEL.json`, and `/page/tables` for a POST of a
        config.json.
        """
        return [
            Route("/page/cards.json", self._devices),
            Route("/page/models.json", self._list),
            Route("/page/tables/{model:path}.json", self._table),
            Route("/page/tables", self._given, methods=["POST"]),
        ]

    async def _devices(self, request: Request) -> Response:
        return await self._answer(request, "cards", device_data)

    async def _list(self, request: Request) -> Response:
        return await self._answer(request, "models", lambda: models_data(served=self._models))

    async def _table(self, request: Request) -> Response:
        name = request.path_params["model"]
        if name not in self._models and name not in await asyncio.to_thread(writers):
            raise ApiError(404, "no such model; the models are listed at /page/models.json", code="model_not_found")
        stored = _stored(request)
        opened = self._models.get(name, name)
        return await self._answer(request, table_name(name, stored), lambda: table_data(name, opened, stored))

    async def _answer(self, request: Request, name: str, make: Callable[[], Mapping[str, object]]) -> Response:
        """Return the response with cached or newly computed data; raise ApiError if it cannot be computed."""
        if name not in self._made:
            await self._in_turn(lambda: self._make(name, make))
        self._made.move_to_end(name)
        return asset_response(request, self._made[name], _KEPT)

    async def _given(self, request: Request) -> Response:
        """Return the price table of the model whose config.json is the body.

        Raises:
            ApiError: If the client may not send one, the config is invalid, or too many requests wait.
        """
        check_client(request, self._settings, "request the cost of a config")
        stored = _stored(request)
        most = min(_CONFIG_BYTES, self._settings.body_bytes)
        body = await read_bytes(request.headers, request.stream(), most)
        values = await parse_object(body, self._settings.json_depth)
        table = await self._in_turn(lambda: asyncio.to_thread(config_table, values, stored))
        written = json.dumps(table, separators=(",", ":"))  # msgspec has 64 bits; a nonsensical config gives more
        return Response(written, headers={"cache-control": "no-store"}, media_type="application/json")

    async def _make(self, name: str, make: Callable[[], Mapping[str, object]]) -> None:
        if name not in self._made:
            self._keep(name, await asyncio.to_thread(make))

    async def _in_turn(self, make: Callable[[], Awaitable[_Made]]) -> _Made:
        """Await the function `make` after all earlier computations and return what it returns.

        Raises:
            ApiError: If too many requests wait (429), or `make` raises ValueError (400).
        """
        if self._waiting >= _WAITING:
            raise ApiError(429, "too many requests for cost tables are waiting: try again", code="queue_tables")
        self._waiting += 1
        try:
            with as_invalid():
                async with self._turn:
                    return await make()
        finally:
            self._waiting -= 1

    def _keep(self, name: str, data: Mapping[str, object]) -> None:
        self._made[name] = Asset("data.json", msgspec.json.encode(data))
        if len(self._made) > _TABLES:
            self._made.popitem(last=False)


def _stored(request: Request) -> StoredModel:
    """Return the storage format of the model that a request's query string selects; raise ApiError if it is invalid."""
    with as_invalid():
        return stored_of(request.url.query)
