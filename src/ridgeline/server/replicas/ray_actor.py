"""The content of a replica's Ray actor: an engine that accepts the one connection with the actor's secret."""

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
"""The seconds that a client has to connect, and then to send the secret."""


class ActorAddress(NamedTuple):
    """The network address of an engine in a Ray actor, with the secret to connect."""

    host: str
    """The network address of the machine on which the engine's Ray actor runs."""
    port: int
    secret: bytes
    """The bytes that a client has to send first."""
    pid: int
    """The process id of the engine's Ray actor."""
    far: bool
    """Whether the engine's Ray actor runs on another machine than its client."""


class EngineActor:
    """An engine in a Ray actor, which `listen` prepares and which runs until its connection ends.

    Ray places the actor and notices its end. The engine's messages use their own connection: a step's message takes
    about ten microseconds on it, and a Ray call about a hundred.
    """

    def listen(self, front: str) -> ActorAddress:
        """Listen for a connection from the server, and return the address.

        Args:
            front: The Ray node of the client. If it is the actor's own, the connection stays on this machine.
        """
        import ray

        far = ray.get_runtime_context().get_node_id() != front
        host = ray.util.get_node_ip_address() if far else "127.0.0.1"
        self._socket = socket.create_server((host, 0), backlog=4)
        self._secret = secrets.token_bytes(SECRET_BYTES)
        return ActorAddress(host, self._socket.getsockname()[1], self._secret, os.getpid(), far)

    def run(self) -> str:
        """Run the engine that the first message describes until the connection ends.

        Returns:
            Why the engine was lost; "" if it was not.
        """
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server handles it, and closes the connection
        with self._socket, self._accept() as connection:
            try:
                run(connection)
            except EngineLost as error:
                return str(error)
        return ""

    def _accept(self) -> socket.socket:
        """Return the first connection that sends the secret; raise TimeoutError if none does in time."""
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
    """Return `count` bytes, or fewer if the connection ends first."""
    data = b""
    try:
        while len(data) < count and (more := connection.recv(count - len(data))):
            data += more
    except OSError:
        pass
    return data
