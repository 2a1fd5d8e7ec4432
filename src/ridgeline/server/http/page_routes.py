"""The page over HTTP: its document at `/` and its files by their names. No folder is served, and no ranges."""

from collections.abc import Mapping, Sequence

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ridgeline.learn.page.assets import Asset, assets
from ridgeline.learn.page.html_document import page_names, served_page

PAGE = frozenset(page_names())
"""Paths of the page. It is public, and the same for everybody: a key is wanted by what it asks."""

_FOR_EVER = "public, max-age=31536000, immutable"
_ASK_AGAIN = "no-cache"
_GUARDED = {"x-content-type-options": "nosniff", "cross-origin-resource-policy": "same-origin"}


def page_routes() -> Sequence[BaseRoute]:
    """`/` and `/page/NAME`."""
    return [Route("/", _document), Route("/page/{name:path}", _asset)]


async def _document(request: Request) -> Response:
    page = served_page()
    headers = {
        "content-security-policy": page.policy,
        "cross-origin-opener-policy": "same-origin",
        "referrer-policy": "no-referrer",
    }
    return asset_response(request, page.document, _ASK_AGAIN, headers)


async def _asset(request: Request) -> Response:
    """A file. Asked for by the digest of its contents it never changes; else it is to be asked for each time."""
    asset = assets().get(request.path_params["name"])
    if asset is None:
        raise HTTPException(404)
    kept = request.query_params.get("v") == asset.digest
    return asset_response(request, asset, _FOR_EVER if kept else _ASK_AGAIN)


def asset_response(request: Request, asset: Asset, kept: str, more: Mapping[str, str] | None = None) -> Response:
    """A file or data as a client takes it, or that it has it already. kept: the cache-control. more: headers."""
    etag = f'"{asset.digest}"'
    headers = {**_GUARDED, **(more or {}), "etag": etag, "cache-control": kept, "vary": "accept-encoding"}
    if etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    data, encoding = _encoded(asset, request.headers)
    return Response(data, headers=headers | encoding, media_type=asset.media)


def _encoded(asset: Asset, asked: Headers) -> tuple[bytes, dict[str, str]]:
    """The contents as a client takes them, and the header that says so."""
    takes = [part.strip() for part in asked.get("accept-encoding", "").lower().split(",")]
    return (asset.gzipped, {"content-encoding": "gzip"}) if "gzip" in takes else (asset.data, {})
