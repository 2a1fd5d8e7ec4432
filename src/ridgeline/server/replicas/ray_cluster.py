"""The Ray cluster that replicas run on, which is found or started on this machine, and the engine processes on it."""

import asyncio
import logging
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from typing_extensions import override

from ridgeline.engine.worker.process_handle import NewLine
from ridgeline.server.replicas.ray_actor import ActorAddress, EngineActor

PIP = "pip install 'ridgeline[ray]'"

_OBJECT_STORE = 100 << 20  # bytes; Ridgeline stores nothing in it
_PATIENCE = 10.0  # seconds until an address counts as dead, and until the log tells that a replica waits

logger = logging.getLogger("ridgeline.server")


def check_ray() -> None:
    """Raise ValueError if Ray is not installed."""
    try:
        version("ray")
    except PackageNotFoundError:
        raise ValueError(f"--replicas needs Ray, which is not installed: run {PIP}") from None


@dataclass(frozen=True, slots=True)
class ReplicaResources:
    """The CPU cores and GPUs of a cluster that one replica reserves."""

    cores: int
    gpus: int = 0

    def within(self, resources: Mapping[str, float]) -> bool:
        """Return whether Ray's resource counts include these cores and GPUs."""
        return resources.get("CPU", 0) >= self.cores and resources.get("GPU", 0) >= self.gpus

    @override
    def __str__(self) -> str:
        parts = [(self.cores, "core"), (self.gpus, "card")]
        return " and ".join(f"{count} {name}{'s' if count > 1 else ''}" for count, name in parts if count)


class RayCluster:
    """A Ray cluster that this process is connected to."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._node = ray.get_runtime_context().get_node_id()

    def free(self, share: ReplicaResources) -> bool:
        """Return whether a replica may be placed now: one machine has the resources, and the cluster has them free.

        Ray has no public API for the free resources of each machine.
        """
        machines = [each["Resources"] for each in self._ray.nodes() if each["Alive"]]
        return any(map(share.within, machines)) and share.within(self._ray.available_resources())

    def actor(self, share: ReplicaResources) -> Any:
        """Return a new Ray actor, which Ray places on a machine with these resources free."""
        made = self._ray.remote(EngineActor)
        return made.options(num_cpus=share.cores, num_gpus=share.gpus, max_restarts=0).remote()

    def kill(self, actor: Any) -> None:
        """Kill a Ray actor, whatever it is doing."""
        with suppress(Exception):  # it has ended already
            self._ray.kill(actor, no_restart=True)

    @property
    def node(self) -> str:
        """The Ray node id of this process."""
        return str(self._node)


@contextmanager
def ray_cluster(address: str | None, cores: int, gpus: int) -> Iterator[RayCluster]:
    """Connect to a Ray cluster, or start one on this machine that ends with the `with` block.

    Args:
        address: HOST:PORT of a cluster; `auto` for the one that this machine belongs to; None to start one.
        cores: The CPU cores of a cluster that is started.
        gpus: The GPUs of a cluster that is started.

    Raises:
        ValueError: If Ray is not installed, the address is malformed, or the cluster does not respond or start.
    """
    check_ray()
    if address is not None and address != "auto":
        _check_address(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no telemetry
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's future default; without it Ray warns
    if _has_token():
        os.environ.setdefault("RAY_AUTH_MODE", "token")  # else Ray sends no token to HOST:PORT
    import ray

    usual: dict[str, Any] = {"log_to_driver": False, "configure_logging": False, "logging_level": logging.ERROR}
    if address is None:
        usual |= {"num_cpus": cores, "num_gpus": gpus, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        usual["object_store_memory"] = _OBJECT_STORE
    try:
        ray.init(address=address or "local", **usual)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        if address is None:
            raise ValueError(f"Ray did not start on this machine: {_line(error)}") from None
        raise _unreachable(address, _line(error)) from None
    try:
        yield RayCluster(ray)
    finally:
        ray.shutdown()


def _has_token() -> bool:
    """Return whether a cluster token exists where Ray looks for one."""
    stated = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    return bool(stated) or (Path.home() / ".ray" / "auth_token").exists()


def _check_address(address: str) -> None:
    """Raise ValueError if an address is not HOST:PORT or nothing listens there, because Ray would retry for minutes."""
    host, _, port = address.rpartition(":")
    if "/" in address or not (host and port.isdecimal() and 0 < int(port) < 1 << 16):
        raise ValueError(
            f"--ray-address is {address!r}: run serve on a machine of the cluster, and give auto or HOST:PORT"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()
    except OSError as error:
        raise _unreachable(address, error.strerror or str(error)) from None


def _unreachable(address: str, why: str) -> ValueError:
    return ValueError(
        f"no Ray cluster responds at --ray-address {address} ({why}): start one with ray start --head, or leave "
        "--ray-address out"
    )


class RayProcessHandle:
    """A handle of an engine that runs in a Ray actor; a `ProcessHandle`."""

    def __init__(self, cluster: RayCluster, replica: int, share: ReplicaResources) -> None:
        self._cluster, self._replica, self._share = cluster, replica, share
        self._actor: Any = None
        self._ended: asyncio.Task[None] | None = None
        self._reported_end = False
        self.listening: ActorAddress | None = None

    @property
    def is_remote(self) -> bool:
        """Whether the engine's Ray actor runs on another machine."""
        assert self.listening is not None
        return self.listening.far

    async def begin(self, line: NewLine, connected: "asyncio.Future[asyncio.Protocol]") -> None:
        """Start a Ray actor and connect to the engine in it.

        Raises:
            RuntimeError: If the actor or the connection fails.
        """
        self._actor = self._cluster.actor(self._share)
        try:
            self.listening = await self._placed()
            ran = self._actor.run.remote()
            transport, _ = await asyncio.get_running_loop().create_connection(
                line, self.listening.host, self.listening.port
            )
        except Exception as error:  # one of Ray's many error classes, or a connection error
            self._cluster.kill(self._actor)
            raise RuntimeError(f"the replica's actor ended at its start: {_line(error)}") from None
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        transport.write(self.listening.secret)
        self._ended = asyncio.create_task(self._until_its_end(ran, transport))

    async def _placed(self) -> ActorAddress:
        listening = asyncio.ensure_future(_listening(self._actor.listen.remote(self._cluster.node)))
        if not (await asyncio.wait([listening], timeout=_PATIENCE))[0] and not self._cluster.free(self._share):
            logger.warning("replica %d waits for a machine of the cluster with %s free", self._replica, self._share)
        return await listening

    async def _until_its_end(self, ran: Any, transport: asyncio.Transport) -> None:
        """Wait for the end of the engine's Ray actor and log the reason.

        A lost actor cannot have closed the connection, because its machine may be gone, so it is aborted here. An actor
        that returned has closed it, and its last messages may still be on their way.
        """
        try:
            why = await ran
        except Exception as error:  # one of Ray's many error classes
            why = _line(error)
            transport.abort()
        if why and not self._reported_end:
            logger.warning("replica %d ended: %s", self._replica, why)

    def end(self, *, at_once: bool) -> None:
        """Kill the engine's Ray actor at once, even if `at_once` is false.

        An actor that has lost its connection has no work to finish.
        """
        self._reported_end = True
        if self._actor is not None:
            self._cluster.kill(self._actor)

    @property
    def where(self) -> str:
        """The process id and the machine of the engine's Ray actor, as text."""
        if self.listening is None:
            return "not placed yet"
        return f"process {self.listening.pid} {f'at {self.listening.host}' if self.is_remote else 'on this machine'}"

    def exit_reason(self) -> str:
        """Return why the process ended, as far as is known: only that it is gone."""
        return "its process has ended" if self.listening is None else f"its process ({self.listening.pid}) has ended"


async def _listening(reference: Any) -> ActorAddress:
    return ActorAddress(*await reference)


def _line(error: BaseException) -> str:
    """Return the first line of an error of Ray, without its final period."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__
