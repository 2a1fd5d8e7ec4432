"""`ridgeline serve --replicas` on Ray itself, and the recipe for two nodes. What a fleet does with its engines is in
test_replicas.py, which needs no Ray."""

import asyncio
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from ridgeline.cli.main import build_app
from ridgeline.server.replicas.ray_actor import SECRET_BYTES, EngineActor
from ridgeline.server.replicas.ray_cluster import RayCluster, RayProcessHandle, ReplicaResources

RECIPE = Path(__file__).parents[2] / "kuberay"

with_ray = pytest.mark.skipif(
    find_spec("ray") is None or find_spec("ray").origin is None,  # type: ignore[union-attr]
    reason="Ray is not installed: pip install 'ridgeline[ray]'",
)


@dataclass
class Server:
    """A server under test. said: the lines of its log."""

    url: str
    process: subprocess.Popen[str]
    said: list[str] = field(default_factory=list)

    def ask(self, path: str, body: Any = None, timeout: float = 60) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return json.load(answer)

    def complete(self, tokens: int) -> str:
        body = {"prompt": "Once upon a time", "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        return str(self.ask("/v1/completions", body)["choices"][0]["text"])

    def replicas(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("/v1/replicas")["replicas"]
        return found

    def until(self, *states: str, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while [each["state"] for each in self.replicas()] != list(states):
            assert time.monotonic() < end, (self.replicas(), self.said)
            time.sleep(0.05)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = ("serve", "tales", "--replicas", "2", "--threads", "1", "--port", "0", "--kv-memory", "32MiB")
    process = subprocess.Popen(
        [sys.executable, "-m", "ridgeline", *command],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    up = Server("", process)
    assert process.stderr is not None
    for line in process.stderr:
        up.said.append(line)
        if found := re.search(r"at (http://[\d.:]+)/v1", line):
            up.url = found[1]
            break
    assert up.url, up.said
    rest = process.stderr
    threading.Thread(target=lambda: up.said.extend(rest), daemon=True).start()
    yield up
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0, up.said


@with_ray
def test_two_actors_answer_and_one_that_is_killed_is_started_again(server: Server) -> None:
    said = server.complete(16)
    texts = list[str]()
    threads = [threading.Thread(target=lambda: texts.append(server.complete(16))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == [said] * 16
    both = server.replicas()
    assert [each["state"] for each in both] == ["ready", "ready"]
    assert all(each["stats"]["output_tokens"] for each in both)
    pids = [int(re.findall(r"process (\d+) of this machine", each["where"])[0]) for each in both]
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids]
    assert all(command.startswith(b"ray::EngineActor") for command in commands), commands
    os.kill(pids[0], signal.SIGKILL)
    assert server.complete(16) == said, "the other answers"
    server.until("ready", "ready")
    again = server.replicas()[0]
    assert again["restarts"] == 1
    assert str(pids[0]) not in again["where"]
    assert any("replica 0 died" in line for line in server.said), server.said
    assert server.complete(16) == said


@with_ray
def test_an_address_at_which_no_cluster_is() -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    for address, says in (
        (f"127.0.0.1:{port}", "no Ray cluster responds at --ray-address"),
        ("ray://127.0.0.1:10001", "give auto or HOST:PORT"),
        ("127.0.0.1", "give auto or HOST:PORT"),
    ):
        answer = subprocess.run(
            [sys.executable, "-m", "ridgeline", "serve", "tales", "--replicas", "2", "--ray-address", address],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert answer.returncode == 2, answer.stderr
        assert says in answer.stderr.splitlines()[-1]


def test_an_actor_runs_an_engine_for_nobody_without_its_secret() -> None:
    """A connection that says something else is closed, and the next one may try."""
    actor = EngineActor()
    actor._socket, actor._secret = socket.create_server(("127.0.0.1", 0)), bytes(range(SECRET_BYTES))
    where, accepted = actor._socket.getsockname(), list[socket.socket]()
    thread = threading.Thread(target=lambda: accepted.append(actor._accept()), daemon=True)
    thread.start()
    for wrong in (b"\0" * SECRET_BYTES, actor._secret[:-1] + b"\0"):
        with socket.create_connection(where, timeout=10) as stranger:
            stranger.sendall(wrong)
            assert stranger.recv(1) == b"", "it is hung up on"
    with socket.create_connection(where, timeout=10) as short:
        short.sendall(actor._secret[:5])
    with socket.create_connection(where, timeout=10) as right:
        right.sendall(actor._secret + b"and more")
        thread.join(10)
        assert accepted[0].recv(8) == b"and more"
        accepted[0].close()
    actor._socket.close()


def test_an_actor_that_returned_has_hung_up_itself() -> None:
    """What it said last may come after Ray's word of its end; one that is lost cannot hang up."""
    aborted = list[str]()

    class Transport:
        def __init__(self, name: str) -> None:
            self.abort = lambda: aborted.append(name)

    async def returned() -> str:
        return "rank 1 is gone"

    async def lost() -> str:
        raise RuntimeError("The actor died.\nIts node is gone.")

    async def run() -> None:
        place = RayProcessHandle(None, 0, ReplicaResources(1))  # type: ignore[arg-type]
        await place._until_its_end(returned(), Transport("returned"))  # type: ignore[arg-type]
        await place._until_its_end(lost(), Transport("lost"))  # type: ignore[arg-type]

    asyncio.run(run())
    assert aborted == ["lost"]


def test_a_share_is_free_where_one_machine_has_it() -> None:
    class Ray:
        def get_runtime_context(self) -> Any:
            return self

        def get_node_id(self) -> str:
            return "here"

        def nodes(self) -> list[dict[str, Any]]:
            return [
                {"Alive": alive, "Resources": {"CPU": count}} for alive, count in ((True, 4), (True, 4), (False, 64))
            ]

        def available_resources(self) -> dict[str, float]:
            return {"CPU": 5.0}

    cluster = RayCluster(Ray())
    assert cluster.free(ReplicaResources(4))
    assert not cluster.free(ReplicaResources(5)), "no machine has as many"
    assert not cluster.free(ReplicaResources(1, gpus=1))


def test_the_recipe_for_two_nodes() -> None:
    """Its command is one of ours, its ports, volumes and labels are those that it names elsewhere, its image is one."""
    job, service, policy = yaml.safe_load_all((RECIPE / "rayjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    words = shlex.split(job["spec"]["entrypoint"])
    assert words[:2] == ["ridgeline", "serve"]
    options = {word: words[at + 1] for at, word in enumerate(words) if word.startswith("--")}
    cluster = job["spec"]["rayClusterSpec"]
    head, (workers,) = cluster["headGroupSpec"], cluster["workerGroupSpecs"]
    assert options["--replicas"] == str(workers["replicas"])
    pods = [each["template"] for each in (head, workers)]
    containers = [pod["spec"]["containers"][0] for pod in pods]
    assert options["--threads"] == containers[1]["resources"]["limits"]["cpu"]
    (port,) = service["spec"]["ports"]
    assert options["--port"] == str(port["port"])
    assert {"name": port["targetPort"], "containerPort": 8000} in containers[0]["ports"]
    assert service["spec"]["selector"] == pods[0]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"] == pods[1]["metadata"]["labels"]
    for pod, container in zip(pods, containers, strict=True):
        assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in pod["spec"]["volumes"]}
        mounts = {each["mountPath"] for each in container["volumeMounts"]}
        assert "/models" in mounts
        assert words[2].startswith("/models/")
    image = (RECIPE / "Dockerfile").read_text()
    assert f"ray[default]=={cluster['rayVersion']}" in image
    assert all(f"-t {container['image']} " in image for container in containers)
    command = typer.main.get_command(build_app(("serve",)))
    serve = getattr(command, "commands", {}).get("serve", command)
    assert set(options) <= {name for parameter in serve.params for name in parameter.opts}
