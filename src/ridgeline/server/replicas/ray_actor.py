"""What runs in a replica's Ray actor: an engine, for the one who knows the actor's secret."""

import os
import secrets
import signal
import socket
from hmac import compare_digest
from typing import NamedTuple

from ridgeline.engine.engine import EngineLost
from ridgeline.engine.worker.engine_child import run

SECRET_BYTES = 32
_PATIENCE = 60.0
"""Seconds that whoever connects has to say the secret, and that somebody has to connect."""


class ActorAddress(NamedTuple):
    """Where an actor listens: an address of its machine; the secret that is to be said there first; its process. far:
    on another machine than who asked.
    """

    host: str
    port: int
    secret: bytes
    pid: int
    far: bool


class EngineActor:
    """An engine on Ray. It is started by `listen` and runs until its connection ends.

    Ray places it and notices its end. What the engine says goes over a connection of its own: a step's message takes
    it some ten microseconds, and a call of Ray's some hundred.
    """

    def listen(self, front: str) -> ActorAddress:
        """Be ready for a connection. front: the Ray node of who will connect, on which nothing leaves the machine."""
        import ray

        far = ray.get_runtime_context().get_node_id() != front
        host = ray.util.get_node_ip_address() if far else "127.0.0.1"
        self._socket = socket.create_server((host, 0), backlog=4)
        self._secret = secrets.token_bytes(SECRET_BYTES)
        return ActorAddress(host, self._socket.getsockname()[1], self._secret, os.getpid(), far)

    def run(self) -> str:
        """Run what the first message asks for, until the connection ends; why the engine was lost, "" where it was
        not.
        """
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for the server, which ends this engine by hanging up
        with self._socket, self._accept() as connection:
            try:
                run(connection)
            except EngineLost as error:
                return str(error)
        return ""

    def _accept(self) -> socket.socket:
        """The connection of who says the secret. Raises TimeoutError where nobody does."""
        self._socket.settimeout(_PATIENCE)
        while True:
            connection, _ = self._socket.accept()
            connection.settimeout(_PATIENCE)
            if compare_digest(_read(connection, SECRET_BYTES), self._secret):
                connection.settimeout(None)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return connection
            connection.close()


def _read(connection: socket.socket, count: int) -> bytes:
    """So many bytes, fewer where no more come."""
    data = b""
    try:
        while len(data) < count and (more := connection.recv(count - len(data))):
            data += more
    except OSError:
        pass
    return data
