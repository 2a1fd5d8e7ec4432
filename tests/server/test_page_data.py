"""The page's data over HTTP: what Python says, made once, and nothing of where models are."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine.small_models import LLAMA
from ridgeline.core.checkpoint.source import open_source
from ridgeline.learn.page.data import table_name
from ridgeline.learn.page.device_tables import build_device_tables
from ridgeline.learn.page.model_tables import StoredModel, model_table
from ridgeline.price.devices import catalogue_devices
from ridgeline.server.app import application
from ridgeline.server.http import page_data
from ridgeline.server.http.auth import Access
from ridgeline.server.http.page_data import PageData
from ridgeline.server.server_settings import ServerSettings
from server.conftest import Listening
from server.wire import listening


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that is served, in a folder that is nobody's business."""
    folder = tmp_path_factory.mktemp("secret") / "place"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    return folder


@pytest.fixture(scope="module")
def up(folder: Path) -> Iterator[Listening]:
    app = application(PageData({"mine": str(folder)}, ServerSettings()).routes())
    with listening(app, ServerSettings()) as port:
        yield Listening(port)


def plain(data: object) -> object:
    """As JSON has it."""
    return json.loads(json.dumps(data))


def test_cards_and_models(up: Listening) -> None:
    assert up.get("/page/cards.json").json() == plain(build_device_tables(catalogue_devices()))
    models = up.get("/page/models.json").json()
    assert models["models"][0] == {"name": "mine", "served": True}
    assert models["tables"] is None


@pytest.mark.parametrize(
    ("query", "stored"),
    [
        ("", StoredModel()),
        ("?weights=fp8&devices=2", StoredModel("fp8", devices=2)),
        ("?kv=fp8", StoredModel(kv="fp8")),
    ],
)
def test_a_table_is_that_of_the_command(up: Listening, query: str, stored: StoredModel) -> None:
    reply = up.get(f"/page/tables/qwen3-0.6b.json{query}")
    assert reply.json() == plain(model_table(open_source("qwen3-0.6b"), stored))
    assert reply.headers["cache-control"] == "private, no-cache"
    again = up.get(f"/page/tables/qwen3-0.6b.json{query}", {"if-none-match": reply.headers["etag"]})
    assert (again.status, again.data) == (304, b"")


def test_a_served_model_has_one_too_by_its_name(up: Listening) -> None:
    reply = up.get("/page/tables/mine.json")
    assert (reply.json()["model"], reply.json()["command"]) == ("mine", "ridgeline page tables mine")
    assert b"secret" not in reply.data
    refused = up.get("/page/tables/mine.json?devices=8")
    assert (refused.status, refused.json()["error"]["code"]) == (400, "invalid_value")
    assert b"secret" not in refused.data


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("tables/nobody.json", 404, "model_not_found"),
        ("tables/bert-base-uncased.json", 404, "model_not_found"),
        ("tables/..%2f..%2fetc.json", 404, "model_not_found"),
        ("tables//etc.json", 404, "model_not_found"),
        ("tables/gpt2", 404, "not_found"),
        ("tables/gpt2.json?devices=8", 400, "invalid_value"),
        ("tables/gpt2.json?weights=int3", 400, "invalid_value"),
        ("tables/gpt2.json?seed=1", 400, "invalid_value"),
    ],
)
def test_what_there_is_no_table_of_is_refused(up: Listening, path: str, status: int, code: str) -> None:
    reply = up.get(f"/page/{path}")
    assert (reply.status, reply.json()["error"]["code"]) == (status, code)


CONFIG = {**LLAMA, "_name_or_path": "/home/somebody/secret"}


@pytest.mark.parametrize(
    ("query", "stored"), [("", StoredModel()), ("?weights=fp8&kv=fp8&devices=2", StoredModel("fp8", "fp8", devices=2))]
)
def test_a_config_that_is_sent_has_the_table_of_the_command(
    up: Listening, folder: Path, query: str, stored: StoredModel
) -> None:
    """By the name of the file that one has; of where it lies on a server there is nothing to say."""
    reply = up.post(f"/page/tables{query}", CONFIG)
    wanted = plain(model_table(open_source(str(folder)), stored))
    assert isinstance(wanted, dict)
    command = stored.command("config.json")
    assert reply.json() == wanted | {"model": "config.json", "command": command}
    assert reply.headers["cache-control"] == "no-store"
    assert up.get("/page/models.json").json()["models"][0]["name"] == "mine"


DEEP = b'{"a":' * 100_000 + b"1" + b"}" * 100_000


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"", 400, "empty"),
        (b"model: llama", 400, "not valid JSON"),
        (b"[1, 2]", 400, "not an object"),
        (b"\xff\xfe{}", 400, ""),
        (b'{"hidden_size": NaN}', 400, "NaN"),
        (b'{"a": "' + b"x" * (5 << 20) + b'"}', 413, "more than 1048576 bytes"),
        (DEEP[: 1 << 20], 400, "nested deeper"),
        (b"{}", 400, "has neither architectures nor model_type"),
        (b'{"architectures": ["<script>alert(1)</script>"]}', 400, "is not supported"),
        (b'{"architectures": [[[]]], "model_type": {"a": 1}}', 400, "has neither architectures nor model_type"),
        (json.dumps({**LLAMA, "num_hidden_layers": 10**9}).encode(), 400, "from 1 to 2000"),
        (json.dumps({**LLAMA, "hidden_size": 10**400}).encode(), 400, ""),
        (json.dumps({**LLAMA, "hidden_size": -1}).encode(), 400, "hidden_size is -1"),
        (json.dumps({**LLAMA, "num_key_value_heads": "\n".join("many")}).encode(), 400, "num_key_value_heads"),
        (json.dumps({"architectures": ["BertModel"], "model_type": "bert"}).encode(), 400, "does not generate text"),
    ],
)
def test_what_is_no_config_is_refused_in_one_line(up: Listening, body: bytes, status: int, says: str) -> None:
    reply = up.post("/page/tables", body)
    error = reply.json()["error"]
    assert (reply.status, "\n" in error["message"]) == (status, False)
    assert says in error["message"]
    assert up.get("/page/models.json").status == 200


def test_numbers_of_an_absurd_model_have_as_many_digits_as_they_need(up: Listening) -> None:
    """More than 64 bits."""
    absurd = {
        **LLAMA,
        "hidden_size": 10**7 - 64,
        "intermediate_size": 10**7,
        "vocab_size": 10**7,
        "num_hidden_layers": 99,
    }
    reply = up.post("/page/tables", absurd)
    assert reply.status == 200
    assert reply.json()["parameters"]["total"] > 99 * 3 * 9e13


def test_where_there_are_keys_a_config_is_priced_with_one() -> None:
    settings = ServerSettings(keys=("k" * 20,))
    app = Access(application(PageData({}, settings).routes()), settings)
    with listening(app, settings) as port:
        assert Listening(port).post("/page/tables", CONFIG).status == 401
        assert Listening(port).post("/page/tables", CONFIG, {"authorization": f"Bearer {'k' * 20}"}).status == 200


def test_tables_are_made_one_at_a_time_and_once_for_many_that_wait(
    up: Listening, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those that wait too many are sent away; what is made stays bounded."""
    begun, free, running, most, made = threading.Event(), threading.Event(), [0], [0], []
    arrived: list[str] = []

    def named(name: str, stored: StoredModel) -> str:
        arrived.append(name)
        return table_name(name, stored)

    def slow(name: str, opened: str, stored: StoredModel) -> dict[str, object]:
        running[0] += 1
        most[0] = max(most[0], running[0])
        begun.set()
        assert free.wait(60)
        made.append(stored)
        running[0] -= 1
        return {"devices": stored.devices}

    monkeypatch.setattr(page_data, "table_data", slow)
    monkeypatch.setattr(page_data, "table_name", named)
    monkeypatch.setattr(page_data, "_WAITING", 4)
    monkeypatch.setattr(page_data, "_TABLES", 2)
    with (
        listening(application(PageData({"mine": str(folder)}, ServerSettings()).routes()), ServerSettings()) as port,
        ThreadPoolExecutor(8) as pool,
    ):
        server = Listening(port)
        first = pool.submit(server.get, "/page/tables/mine.json")
        assert begun.wait(60)
        others = [pool.submit(server.get, f"/page/tables/mine.json{query}") for query in ("", "", "?devices=2")]
        _until(lambda: len(arrived) == 4)  # on its loop a server counts who waits in the step that names the table
        refused = server.get("/page/tables/mine.json?devices=4")
        assert (refused.status, refused.json()["error"]["code"]) == (429, "queue_tables")
        free.set()
        assert [each.result(60).json()["devices"] for each in (first, *others)] == [1, 1, 1, 2]
        assert (most[0], made.count(StoredModel())) == (1, 1)
        for query in ("?devices=4", "?weights=int8", ""):  # two are kept: later ones take the place of the first
            assert server.get(f"/page/tables/mine.json{query}").status == 200
        assert made.count(StoredModel()) == 2


def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.01)
