"""`ridgeline serve`: its options become settings, and it says what it serves. The server is tests/server's matter."""

import http.client
import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
from gguf import GGMLQuantizationType as Type

from cli.running import OK, REFUSED, USAGE, Run, assert_one_line
from engine.folders import CHAT, THINKING_CHAT, write_model
from ridgeline.backends.cpu.library import library
from ridgeline.cli import serve as command
from ridgeline.cli.limits import LIMITS
from ridgeline.engine.async_llm import AsyncLLM
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.setup import load_engine
from ridgeline.engine.text_processor import load_text_processor
from ridgeline.price.devices import load_device
from ridgeline.server.images.served_images import ServedImages
from ridgeline.server.lifecycle import ServedLLM
from ridgeline.server.server_settings import ServerSettings
from server.scripted import INFO
from support.gguf_models import made

Told = tuple[ServedLLM, ServerSettings]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Told]:
    """What the server would be told."""
    calls: list[Told] = []

    def run_server(served: ServedLLM, settings: ServerSettings, ready: object) -> int:
        calls.append((served, settings))
        return OK

    monkeypatch.setattr(command, "run_server", run_server)
    monkeypatch.setattr(command, "set_up_logs", lambda _: None)
    return calls


def test_defaults_are_the_settings_own(ridgeline: Run, told: list[Told]) -> None:
    assert ridgeline("serve", "tales").code == OK
    ((served, settings),) = told
    assert settings == ServerSettings()
    assert (served.model, served.name, served.settings) == ("tales", "tales", EngineSettings())


def test_every_setting_has_an_option(ridgeline: Run, told: list[Told], tmp_path: Path) -> None:
    """Each changes its own field of the settings and no other."""
    (tmp_path / "keys").write_text("# ours\nsecond\n")
    own: dict[str, tuple[list[str], Any]] = {
        "host": (["--host", "::1"], "::1"),
        "port": (["--port", "0"], 0),
        "models": (["--served-model-name", "a", "--served_model_name=b"], ("a", "b")),
        "keys": (["--api-key", "first", "--api-key-file", str(tmp_path / "keys")], ("first", "second")),
        "insecure": (["--insecure"], True),
        "allowed_origins": (["--allowed-origins", '["http://a.b", "http://c.d:1"]'], ("http://a.b", "http://c.d:1")),
        "allowed_hosts": (["--allowed-hosts", "a.b", "--allowed-hosts", "c.d"], ("a.b", "c.d")),
        "strict": (["--strict"], True),
        "open_objects": (["--open-objects"], True),
        "tool_parser": (["--tool-call-parser", "hermes"], "hermes"),
        "access_log": (["--disable-uvicorn-access-log"], False),
        "log_format": (["--log-format", "json"], "json"),
        "metrics_alias": (["--metrics-alias", "vllm"], "vllm"),
        "record": (["--record", "new"], "new"),
        "priced": (["--priced", "h100-sxm"], "NVIDIA H100 SXM 80GB"),
    }
    for each in fields(ServerSettings):
        if each.name in LIMITS and LIMITS[each.name].models == "diffusion":
            continue  # there are none here
        arguments, value = own.get(each.name) or limit(each.name)
        assert ridgeline("serve", "tales", *arguments).code == OK
        settings = told[-1][1]
        changed = {f.name for f in fields(settings) if getattr(settings, f.name) != f.default}
        assert changed == {each.name}, arguments
        assert getattr(settings, each.name) == value


def limit(name: str) -> tuple[list[str], Any]:
    option = LIMITS[name].option
    if name.endswith("_bytes"):
        return [option, "3KiB"], 3072
    return ([option, "1500ms"], 1.5) if name.endswith("_seconds") else ([option, "7"], 7)


def test_what_the_engine_is_told(ridgeline: Run, told: list[Told], tmp_path: Path) -> None:
    """Under vLLM's names; a folder is called by its last name, not by its path."""
    folder = write_model(tmp_path / "mine")
    template = tmp_path / "chat.jinja"
    template.write_text("{{ messages[0].content }}<think>")
    ended = ridgeline(
        "serve", "--model", folder, "--max_model_len", "32", "--max-num-seqs", 5, "--kv-cache-memory-bytes", "2MB",
        "--no-enable-prefix-caching", "--seed", 3, "--chat-template", template, "--reasoning-parser", "deepseek_r1",
        "--grammar-cache", "1MiB", "--enforce-eager", "--max-logprobs", "4", "--dtype", "auto",
    )  # fmt: skip
    assert ended.code == OK, ended.err
    ((served, settings),) = told
    engine = served.settings
    assert engine is not None
    assert (engine.context, engine.limits.requests, engine.kv_bytes, engine.prefix_cache) == (32, 5, 2e6, False)
    assert (engine.seed, engine.grammar_bytes, settings.top_logprobs, served.name) == (3, 1 << 20, 4, "mine")
    texts = load_text_processor(str(folder), chat_template=engine.chat_template, reasoning=engine.reasoning)
    assert texts.reasoning_format is not None
    assert texts.reasoning_format.name == "deepseek_r1"
    assert texts.templates is not None
    assert texts.templates.pick().source == template.read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["nowhere"], REFUSED, "no such model or folder: nowhere"),
        (["tales", "--host", "0.0.0.0"], USAGE, "give an API key (--api-key-file), or --insecure"),
        (["tales", "--port", "70000"], USAGE, "ridgeline: --port is 70000"),
        (["tales", "--max-body", "3"], USAGE, "--max-body is '3'; write an amount of memory"),
        (["tales", "--queue-timeout", "5"], USAGE, "--queue-timeout is '5'; write a time above 0 with its unit"),
        (["tales", "--max-choices", "0"], USAGE, "ridgeline: --max-choices is 0: give 1 to"),
        (["tales", "--allowed-origins", "[1"], USAGE, "is not a valid JSON list"),
        (["tales", "--api-key-file", "none"], USAGE, "cannot read none: "),
        (["tales", "--reasoning-parser", "none at all"], USAGE, "--reasoning-parser is 'none at all'; give one of"),
        (["tales", "--ssl-keyfile", "x"], USAGE, "put a reverse proxy that terminates TLS in front"),
        (["tales", "--prot", "1"], USAGE, "unknown option --prot; did you mean --port"),
        (["tales", "--priced", "h100"], USAGE, "h100"),
        (["tales", "--priced-devices", "2"], USAGE, "--priced-devices is the number of --priced devices"),
        (["tales", "--priced", "h100-sxm", "--priced-devices", "0"], USAGE, "devices is 0"),
        (["tales", "--priced", "h100-sxm", "--priced-devices", "99"], USAGE, "devices is 99"),
        (["llama-3-70b", "--priced", "h100-sxm"], USAGE, "do not fit on NVIDIA H100"),
        (["tales", "--priced", "h100-sxm", "--threads", "1"], USAGE, "--threads is for a model that runs"),
        (["tales", "--priced", "h100-sxm", "--dummy-weights"], USAGE, "--dummy-weights is for a model that runs"),
        (["tales", "--priced", "h100-sxm", "--tensor-parallel", "2"], USAGE, "--tensor-parallel is for a model that"),
        (["tales", "--priced", "h100-sxm", "--speculate", "ngram"], USAGE, "--speculate is for a model that runs"),
        (["tales", "--priced", "h100-sxm", "--seed", "1"], USAGE, "--seed is for a model that runs"),
        (["tales", "--priced", "h100-sxm", "--max-lora-rank", "64"], USAGE, "--max-lora-rank is for a model that runs"),
        (["tales", "--priced", "h100-sxm", "--enable-lora"], USAGE, "--enable-lora is for a model that runs"),
        (["tales", "--priced", "h100-sxm", "--max-loras", "2"], USAGE, "--max-loras is for a model that runs"),
        (["tales", "--priced", "h100-sxm", "--weights", "int3"], USAGE, "--weights is 'int3'; it must be one of"),
        (["translate", "--priced", "h100-sxm"], USAGE, "models that continue a text"),
        (["flux.1-schnell", "--priced", "h100-sxm"], USAGE, "is a diffusion pipeline"),
    ],
)
def test_what_is_refused(ridgeline: Run, told: list[Told], arguments: list[str], code: int, says: str) -> None:
    assert_one_line(ridgeline("serve", *arguments), code, says)
    assert not told


def test_a_file_is_called_by_its_name_without_the_ending(ridgeline: Run, told: list[Told], tmp_path: Path) -> None:
    made(tmp_path / "Small-Q8_0.gguf", "llama", lambda _: Type.Q8_0)
    assert ridgeline("serve", tmp_path / "Small-Q8_0.gguf").code == OK
    served = told[0][0]
    assert (served.model, served.name) == (str(tmp_path / "Small-Q8_0.gguf"), "Small-Q8_0")


def test_a_server_that_serves(ridgeline: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the command to an answer and to the signal that ends it: URL, model, capacity and limits are said."""
    answers: list[Any] = []
    say_ready = command.say_ready

    def ask(url: str) -> None:
        host = urlsplit(url)
        connection = http.client.HTTPConnection(str(host.hostname), host.port, timeout=30)
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "Once", "max_tokens": 3, "seed": 1}))
        answers.append(json.loads(connection.getresponse().read()))
        connection.close()
        os.kill(os.getpid(), signal.SIGINT)

    def ready(url: str, *others: Any) -> None:
        say_ready(url, *others)
        threading.Thread(target=ask, args=(url,), daemon=True).start()

    monkeypatch.setattr(command, "say_ready", ready)
    arguments = "serve", "tales", "--port", 0, "--max-model-len", 64, "--served-model-name", "mine"
    ended = ridgeline(*arguments)
    assert ended.code == OK, ended.err
    assert answers[0]["model"] == "mine"
    assert answers[0]["usage"]["completion_tokens"] == 3
    assert "serving mine for this machine at http://127.0.0.1:" in ended.err
    assert re.search(r"at (http://127\.0\.0\.1:\d+)/v1 with .*; its page: \1/$", ended.err, re.MULTILINE)
    lines = [line.split(" ", 3)[3] for line in ended.err.splitlines()]
    assert lines[0] == "loading tales"
    assert sum("concurrency for 64 tokens" in line for line in lines) == 1
    assert len(set(lines)) == len(lines)
    assert "limits: 256 running requests, 1,024 in the queue for 60 s, 600 s in total; n up to 8" in ended.err


def test_a_server_without_kernels_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    llm: Any = SimpleNamespace(info=INFO, texts=SimpleNamespace(templates=None))
    with caplog.at_level(logging.WARNING):
        command.say_ready("url", llm, "mine", ServerSettings())
        assert not caplog.messages
        monkeypatch.setattr(sys.modules[library.__module__], "PATH", tmp_path / "none.so")
        command.say_ready("url", llm, "mine", ServerSettings())
    (said,) = caplog.messages
    assert "apt install g++, then reinstall ridgeline" in said


@pytest.mark.parametrize("definition", ["", "OlmoeForCausalLM of transformers 5.24"])
def test_a_server_names_the_class_that_defines_its_model(caplog: pytest.LogCaptureFixture, definition: str) -> None:
    info = msgspec.structs.replace(INFO, definition=definition)
    llm: Any = SimpleNamespace(info=info, texts=SimpleNamespace(templates=None))
    with caplog.at_level(logging.INFO):
        command.say_ready("url", llm, "mine", ServerSettings())
    said = [line for line in caplog.messages if "transformers" in line]
    assert said == [f"built from {definition}, because no family here builds it"] * bool(definition)


@pytest.mark.parametrize(
    ("template", "parser", "expected"),
    [
        (None, None, []),
        (THINKING_CHAT, None, ["formats: tool calls unknown, reasoning deepseek_r1"]),
        (CHAT, "mimo", ["formats: tool calls qwen3_coder, reasoning none"]),
    ],
)
def test_a_server_names_the_formats_of_responses(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, template: str | None, parser: str | None, expected: list[str]
) -> None:
    texts = load_text_processor(str(write_model(tmp_path / "model", template=template)))
    llm: Any = SimpleNamespace(info=INFO, texts=texts)
    with caplog.at_level(logging.INFO):
        command.say_ready("url", llm, "mine", ServerSettings(tool_parser=parser))
    assert [line for line in caplog.messages if line.startswith("formats")] == expected


def test_in_json_every_line_is_an_object(ridgeline: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    say_ready = command.say_ready

    def ready(*told: Any) -> None:
        say_ready(*told)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(command, "say_ready", ready)
    monkeypatch.setattr(command, "device_named", lambda *_: load_device("h100-sxm"))
    ended = ridgeline("serve", "tales", "--port", 0, "--max-model-len", 64, "--log-format", "json")
    assert ended.code == OK, ended.err
    said = [json.loads(line) for line in ended.err.splitlines()]
    assert [line["url"].rpartition(":")[0] for line in said if "url" in line] == ["http://127.0.0.1"]


def test_a_port_that_is_taken_is_said_before_anything_is_measured(
    ridgeline: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[object] = []
    monkeypatch.setattr(command, "device_named", lambda *_: measured.append(None))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = ridgeline("serve", "tales", "--port", port)
    assert_one_line(ended, USAGE, f"cannot listen on 127.0.0.1 port {port}: Address already in use; is another")
    assert ended.err.count("127.0.0.1") == 1
    assert not measured


def test_a_context_without_room_is_refused(ridgeline: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def start(model: str, settings: EngineSettings, **_: Any) -> None:
        load_engine(model, settings)  # in this process

    monkeypatch.setattr(AsyncLLM, "start", start)
    monkeypatch.setattr(command, "device_named", lambda *_: None)
    ended = ridgeline("serve", "tales", "--port", 0, "--kv-memory", "256KiB")
    assert ended.code == USAGE
    found = re.search(r"holds \d+ positions .* --max-model-len (\d+) or less, or --kv-memory (\d+)MiB", ended.err)
    assert found is not None, ended.err
    assert 0 < int(found[1]) < 512
    for fitting in (
        EngineSettings(kv_bytes=2**18, context=int(found[1])),
        EngineSettings(kv_bytes=int(found[2]) << 20),
    ):
        whole = load_engine("tales", replace(fitting, whole_context=True))
        assert whole.engine.kv_cache_manager.capacity() >= whole.engine.traits.context
    with pytest.raises(ValueError, match="--max-model-len"):
        load_engine("tales", EngineSettings(kv_bytes=2**18, context=int(found[1]) + 1, whole_context=True))


def test_a_signal_while_the_command_is_imported_ends_it_well() -> None:
    """Of a process of its own, without what takes long to import."""
    script = "import os, signal, time\nfrom ridgeline.cli import process_setup\nprocess_setup.leave_on_sigterm()\n"
    script += "os.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(9)\nos._exit(7)"
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=60).returncode == 0


@pytest.mark.parametrize(
    ("models", "draws"), [(["digits-ar"], True), (["digits-ar", "digits"], True), (["tales"], False)]
)
def test_a_model_that_draws_too_is_named_once(
    ridgeline: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, models: list[str], draws: bool
) -> None:
    """When the server is ready: its text may mean nothing."""

    def run_server(served: object, settings: object, ready: Any) -> int:
        ready("url", None)
        return OK

    monkeypatch.setattr(command, "run_server", run_server)
    for name in ("set_up_logs", "say_ready", "say_multi_model_ready"):
        monkeypatch.setattr(command, name, lambda *_: None)
    with caplog.at_level("WARNING", logger="ridgeline.server"):
        assert ridgeline("serve", *models).code == OK
    said = [record.message for record in caplog.records if "also generates images (ridgeline image)" in record.message]
    assert len(said) == draws


# -- pipelines --------------------------------------------------------------------------------------------------------


def test_what_pictures_are_served_with(
    ridgeline: Run, monkeypatch: pytest.MonkeyPatch, z_image_folder: Path, tmp_path: Path
) -> None:
    """Several pipelines, each called by its folder."""
    told: list[tuple[ServedImages, ServerSettings]] = []
    monkeypatch.setattr(command, "run_server", lambda *given: told.append(given[:2]) or OK)
    monkeypatch.setattr(command, "set_up_logs", lambda _: None)
    shutil.copytree(z_image_folder, tmp_path / "other")
    ended = ridgeline("serve", z_image_folder, tmp_path / "other", "--threads", 1, "--max-image-memory", "1MiB")
    assert ended.code == OK, ended.err
    ((served, settings),) = told
    assert served.models == {"z-image": str(z_image_folder), "other": str(tmp_path / "other")}
    assert (served.threads, settings.image_bytes) == (1, 1 << 20)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["FOLDER"], USAGE, "two of the models have the same name"),
        (["FOLDER", "--served-model-name", "a"], USAGE, "--served-model-name is for a single model"),
        (
            ["--kv-memory", "1GiB"],
            USAGE,
            "--kv-memory is for language models, but FOLDER generates images; leave it out",
        ),
        (["--dummy-weights"], USAGE, "--dummy-weights is for language models"),
        (["--lora-modules", "a=b"], USAGE, "--lora-modules is for language models"),
        (["--record", "new"], USAGE, "--record is for language models"),
        (["--seed", "1"], USAGE, "--seed is for language models"),
        (["--max-stops", "3"], USAGE, "--max-stops is for language models, but FOLDER generates images; leave it out"),
        (["--threads", "1000"], USAGE, "threads is 1000"),
        (
            ["tales", "mixture"],
            USAGE,
            "2 language models are given, but a server runs one; start another server for mixture",
        ),
        (["tales", "--served-model-name", "a"], USAGE, "--served-model-name is for a single model"),
        (["tales", "--max-loras", "0", "--lora-modules", "a=b"], USAGE, "--max-loras is 0"),
    ],
)
def test_what_does_not_go_with_pictures(
    ridgeline: Run, told: list[Told], z_image_folder: Path, arguments: list[str], code: int, says: str
) -> None:
    given = [argument.replace("FOLDER", str(z_image_folder)) for argument in arguments]
    assert_one_line(ridgeline("serve", z_image_folder, *given), code, says.replace("FOLDER", str(z_image_folder)))
    assert not told


def test_what_both_sorts_are_served_with(ridgeline: Run, told: list[Any], z_image_folder: Path) -> None:
    """Options of either; threads are all models' together."""
    ended = ridgeline(
        "serve", z_image_folder, "tales", "--kv-memory", "2MB", "--max-stops", "3", "--max-image-memory", "1MiB",
        "--seed", 3, "--threads", 1, "--dummy-weights", "--tool-call-parser", "hermes",
    )  # fmt: skip
    assert ended.code == OK, ended.err
    ((served, settings),) = told
    assert (served.language.model, served.language.name, served.language.dummy_weights) == ("tales", "tales", True)
    assert (served.language.settings.kv_bytes, served.language.settings.seed) == (2e6, 3)
    assert (served.pipelines.models, served.pipelines.threads) == ({"z-image": str(z_image_folder)}, 1)
    assert (settings.stops, settings.image_bytes, settings.tool_parser) == (3, 1 << 20, "hermes")


def test_limits_of_pictures_where_none_are_drawn(ridgeline: Run, told: list[Told]) -> None:
    said = "--max-image-memory is for diffusion pipelines, but tales is a language model; leave it out"
    assert_one_line(ridgeline("serve", "tales", "--max-image-memory", "3KiB"), USAGE, said)
    assert not told


def test_language_models_are_served_one_by_one(ridgeline: Run, told: list[Told]) -> None:
    assert_one_line(ridgeline("serve", "tales", "mixture"), USAGE, "2 language models are given, but a server runs one")
    assert not told


@pytest.mark.parametrize("model", ["FOLDER", "digits"])
@pytest.mark.parametrize("name", [None, "mine"])
def test_a_server_that_draws(
    ridgeline: Run, monkeypatch: pytest.MonkeyPatch, z_image_folder: Path, model: str, name: str | None
) -> None:
    """From the command to a picture and to the signal that ends it, under its own name or another."""
    folder = model.replace("FOLDER", str(z_image_folder))
    called = Path(folder).name
    answers: list[Any] = []
    say_drawing = command.say_images_ready

    def ask(url: str) -> None:
        host = urlsplit(url)
        connection = http.client.HTTPConnection(str(host.hostname), host.port, timeout=30)
        body = {"prompt": "a seven", "num_inference_steps": 1, "model": name or called}
        connection.request("POST", "/v1/images/generations", json.dumps(body))
        answers.append(json.loads(connection.getresponse().read()))
        connection.close()
        os.kill(os.getpid(), signal.SIGINT)

    def ready(url: str, *others: Any) -> None:
        say_drawing(url, *others)
        threading.Thread(target=ask, args=(url,), daemon=True).start()

    monkeypatch.setattr(command, "say_images_ready", ready)
    monkeypatch.setattr(command, "device_named", lambda *_: load_device("h100-sxm"))
    named = ("--served-model-name", name) if name is not None else ()
    ended = ridgeline("serve", folder, "--port", 0, *named, "--threads", 1)
    assert ended.code == OK, ended.err
    assert (answers[0].get("model"), len(answers[0].get("data", ()))) == (name or called, 1), answers
    assert f"loading {called}" in ended.err
    assert f"serving {name or called} for this machine at http://127.0.0.1:" in ended.err
    assert "limits: 16 requests, 60 s to the first step, 600 s in total; n up to 8, 256 MiB of images" in ended.err
