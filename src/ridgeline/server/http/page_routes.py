"""The routes of the web page: its document at `/` and its files by name, without folder access or range requests."""

from collections.abc import Mapping, Sequence

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ridgeline.learn.page.assets import Asset, assets
from ridgeline.learn.page.html_document import page_names, served_page

PAGE = frozenset(page_names())
"""The paths of the web page's files, which are public and the same for everyone.

The routes that the page calls still need a key.
"""

_FOR_EVER = "public, max-age=31536000, immutable"
_REVALIDATE = "no-cache"
_GUARDED = {"x-content-type-options": "nosniff", "cross-origin-resource-policy": "same-origin"}


def page_routes() -> Sequence[BaseRoute]:
    """Return the routes of the web page: `/` and `/page/NAME`."""
    return [Route("/", _document), Route("/page/{name:path}", _asset)]


async def _document(request: Request) -> Response:
    page = served_page()
    headers = {
        "content-security-policy": page.policy,
        "cross-origin-opener-policy": "same-origin",
        "referrer-policy": "no-referrer",
    }
    return asset_response(request, page.document, _REVALIDATE, headers)


async def _asset(request: Request) -> Response:
    """Return a file, cached for ever if its URL has the digest of its contents, else to be revalidated each time."""
    asset = assets().get(request.path_params["name"])
    if asset is None:
        raise HTTPException(404)
    kept = request.query_params.get("v") == asset.digest
    return asset_response(request, asset, _FOR_EVER if kept else _REVALIDATE)


def asset_response(request: Request, asset: Asset, kept: str, more: Mapping[str, str] | None = None) -> Response:
    """Return a file or data, compressed if the client accepts it, or 304 if the client has it already.

    Args:
        request: The request.
        asset: The file or data.
        kept: The cache-control header.
        more: Further headers.
    """
    etag = f'"{asset.digest}"'
    headers = {**_GUARDED, **(more or {}), "etag": etag, "cache-control": kept, "vary": "accept-encoding"}
    if etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    data, encoding = _encoded(asset, request.headers)
    return Response(data, headers=headers | encoding, media_type=asset.media)


def _encoded(asset: Asset, request_headers: Headers) -> tuple[bytes, dict[str, str]]:
    """Return the contents in an encoding that the client accepts, and the content-encoding header."""
    takes = [part.strip() for part in request_headers.get("accept-encoding", "").lower().split(",")]
    return (asset.gzipped, {"content-encoding": "gzip"}) if "gzip" in takes else (asset.data, {})
