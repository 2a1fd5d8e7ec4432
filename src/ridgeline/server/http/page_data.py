"""The page's data over HTTP: cards, models, and prices as tables, each made when it is first asked for."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ridgeline.page.assets import Asset
from ridgeline.page.data import cards_data, models_data, stored_of, table_data, table_name, writers
from ridgeline.server.errors import ApiError, invalid
from ridgeline.server.http.page import asset_response

_KEPT = "private, no-cache"
_TABLES = 256
"""Tables that are kept, of some 10 KB."""

_WAITING = 16
"""Requests that wait for a table, of which one is made at a time: it takes the interpreter for up to seconds."""


class PageData:
    """The data of a server's page. models: those that are served and write text, what opens each by its name."""

    def __init__(self, models: Mapping[str, str]) -> None:
        self._models, self._made = dict(models), OrderedDict[str, Asset]()
        self._turn, self._waiting = asyncio.Lock(), 0

    def routes(self) -> Sequence[BaseRoute]:
        """`/page/cards.json`, `/page/models.json`, `/page/tables/MODEL.json`; before those of the page's files."""
        return [
            Route("/page/cards.json", self._cards),
            Route("/page/models.json", self._list),
            Route("/page/tables/{model:path}.json", self._table),
        ]

    async def _cards(self, request: Request) -> Response:
        return await self._answer(request, "cards", cards_data)

    async def _list(self, request: Request) -> Response:
        return await self._answer(request, "models", lambda: models_data(served=self._models))

    async def _table(self, request: Request) -> Response:
        name = request.path_params["model"]
        if name not in self._models and name not in await asyncio.to_thread(writers):
            raise ApiError(404, "there is no such model; /page/models.json lists them", code="model_not_found")
        try:
            stored = stored_of(request.url.query)
        except ValueError as error:
            raise invalid(str(error)) from None
        opened = self._models.get(name, name)
        return await self._answer(request, table_name(name, stored), lambda: table_data(name, opened, stored))

    async def _answer(self, request: Request, name: str, make: Callable[[], Mapping[str, object]]) -> Response:
        """Data that was made before, or is now. Raises ApiError."""
        if name not in self._made:
            await self._in_turn(name, make)
        self._made.move_to_end(name)
        return asset_response(request, self._made[name], _KEPT)

    async def _in_turn(self, name: str, make: Callable[[], Mapping[str, object]]) -> None:
        if self._waiting >= _WAITING:
            raise ApiError(
                429, "too many tables are asked for at once; try again", kind="rate_limit_error", code="queue_tables"
            )
        self._waiting += 1
        try:
            async with self._turn:
                if name not in self._made:
                    self._keep(name, await asyncio.to_thread(make))
        except ValueError as error:
            raise invalid(str(error)) from None
        finally:
            self._waiting -= 1

    def _keep(self, name: str, data: Mapping[str, object]) -> None:
        self._made[name] = Asset("data.json", msgspec.json.encode(data))
        if len(self._made) > _TABLES:
            self._made.popitem(last=False)
