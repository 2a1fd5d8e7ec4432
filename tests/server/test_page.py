"""The page over HTTP: to everybody, kept as long as it stays the same, with a policy; and no other file."""

import gzip
import http.client
import re
from collections.abc import Iterator

import pytest

from ridgeline.learn.page.assets import assets
from ridgeline.learn.page.html_document import page_names, served_page
from ridgeline.server.http.health import Health, ReadinessGate
from ridgeline.server.lifecycle import with_access_control
from ridgeline.server.server_settings import ServerSettings
from server.conftest import Listening, Running
from server.wire import listening


def test_the_document_has_a_policy_that_fits_it(server: Running) -> None:
    reply = server.get("/")
    assert (reply.status, reply.data) == (200, served_page().document.data)
    policy = reply.headers["content-security-policy"]
    for part in ("default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"):
        assert part in policy
    assert "unsafe" not in policy
    assert (reply.headers["x-content-type-options"], reply.headers["cache-control"]) == ("nosniff", "no-cache")
    assert not re.search(rb" on\w+=|javascript:|<script(?! type=\"(importmap|module)\")", reply.data)


def test_each_file_is_there_under_the_address_that_the_document_has_for_it(server: Running) -> None:
    document = served_page().document.data.decode()
    addresses = set(re.findall(r'"(?:\./)?(page/[^"?]+\?v=[^"]+)"', document))
    assert {address.partition("?")[0].removeprefix("page/") for address in addresses} == set(assets())
    for address in addresses:
        reply = server.get(f"/{address}")
        asset = assets()[address.partition("?")[0].removeprefix("page/")]
        assert (reply.status, reply.data, reply.headers["content-type"]) == (200, asset.data, asset.media)
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["cache-control"] == "public, max-age=31536000, immutable"


def test_a_file_is_compressed_for_who_takes_that(server: Running) -> None:
    reply = server.get("/page/app.js", {"accept-encoding": "br, GZIP"})
    assert (reply.headers["content-encoding"], reply.headers["vary"]) == ("gzip", "accept-encoding")
    assert gzip.decompress(reply.data) == assets()["app.js"].data == server.get("/page/app.js").data
    document = server.get("/", {"accept-encoding": "gzip"})
    assert gzip.decompress(document.data) == served_page().document.data
    again = server.get("/", {"if-none-match": document.headers["etag"]})
    assert (again.status, again.data) == (304, b"")


@pytest.mark.parametrize("version", ["", "?v=0", "?v=" + "0" * 16, "?w=1"])
def test_a_file_by_another_version_is_asked_for_each_time(server: Running, version: str) -> None:
    reply = server.get(f"/page/app.js{version}")
    assert (reply.status, reply.headers["cache-control"]) == (200, "no-cache")
    again = server.get(f"/page/app.js{version}", {"if-none-match": reply.headers["etag"]})
    assert (again.status, again.data) == (304, b"")
    assert server.get("/page/app.js", {"if-none-match": '"other"'}).status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/page/",
        "/page/index.html",
        "/page/vendored/README.md",
        "/page/vendored/htm/LICENSE",
        "/page/../version.py",
        "/page/..%2f..%2fversion.py",
        "/page/%2e%2e/assets.py",
        "/page//etc/passwd",
        "/page/APP.JS",
        "/page/app.js%00.css",
    ],
)
def test_no_other_file_is_served(server: Running, path: str) -> None:
    reply = server.get(path)
    assert (reply.status, reply.json()["error"]["code"]) == (404, "not_found")


def test_ten_thousand_ranges_are_the_whole_file(server: Running) -> None:
    """CVE-2025-62727: what is served as bytes has no ranges."""
    ranges = "bytes=" + ",".join(f"{i}-{i}" for i in range(3000))
    reply = server.get("/page/app.js", {"range": ranges})
    assert (reply.status, reply.data) == (200, assets()["app.js"].data)


def test_it_is_only_read(server: Running) -> None:
    assert server.post("/", {}).status == server.post("/page/app.js", {}).status == 405
    head = server.request("HEAD", "/page/app.js")
    assert (head.status, head.data) == (200, b"")


@pytest.fixture(scope="module")
def loading() -> Iterator[Listening]:
    """A server with a key, the model of which is still to be read."""
    settings = ServerSettings(keys=("sk-one",))
    with listening(with_access_control(ReadinessGate(Health(60.0)), settings, ()), settings) as port:
        yield Listening(port)


def test_it_wants_no_key_and_no_model(loading: Listening) -> None:
    """What it asks does."""
    for path in page_names():
        reply = loading.get(path)
        assert reply.status == 200, path
        assert reply.data
    assert loading.get("/v1/models").status == 401
    assert loading.get("/v1/models", {"authorization": "Bearer sk-one"}).status == 503
    connection = http.client.HTTPConnection("127.0.0.1", loading.port, timeout=10)
    connection.request("GET", "/", headers={"host": "evil.example"})
    assert connection.getresponse().status == 200, "with a key any name will do"
