"""The parsing of multipart form bodies, which are read completely within limits before they are parsed."""

from collections.abc import AsyncGenerator
from importlib.util import find_spec

from starlette.datastructures import FormData, Headers
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from ridgeline.server.errors import invalid
from ridgeline.server.http.body import read_bytes

PACKAGE = "python_multipart"
_MAX_FIELDS = 32  # per form


def is_form(request: Request) -> bool:
    """Return whether a request's content type is a multipart form."""
    return request.headers.get("content-type", "").lower().startswith("multipart/form-data")


async def read_form(request: Request, most: int, most_of_field: int) -> FormData:
    """Return the form in a request's body; the caller closes it.

    Args:
        request: The request.
        most: The most bytes of the body.
        most_of_field: The most bytes of a field that is not a file.

    Raises:
        ApiError: If the body is too large (413), or is no valid form or python-multipart is not installed (400).
    """
    if find_spec(PACKAGE) is None:
        message = "this server cannot read forms without python-multipart (pip install 'ridgeline[images]'): send JSON"
        raise invalid(message, code="invalid_form")
    body = await read_bytes(request.headers, request.stream(), most)
    parser = MultiPartParser(
        Headers(request.headers), _once(body), max_files=1, max_fields=_MAX_FIELDS, max_part_size=most_of_field
    )
    try:
        return await parser.parse()
    except MultiPartException as error:
        raise invalid(f"cannot read the form: {error.message}", code="invalid_form") from None
    except (KeyError, UnicodeDecodeError, ValueError):
        raise invalid("cannot read the form: its parts are not valid form parts", code="invalid_form") from None


async def _once(body: bytes) -> AsyncGenerator[bytes, None]:
    yield body
