"""The settings for sending KV pages of prompts to other engines, or requesting them from other engines.

On the command line they are `--kv-listen`, `--kv-from` and vLLM's `--kv-transfer-config`.
"""

import socket
from dataclasses import dataclass, field
from typing import Any

from ridgeline.engine.vllm_json import json_option

PORT = 14579
"""The default port for KV transfers, that of vLLM's JSON (kv_port)."""
TIMEOUT = 30.0
"""The default seconds to wait for a prompt's KV pages."""

_OPTION = "--kv-transfer-config"
_KEYS = ("kv_role", "kv_ip", "kv_port")
_UNIX = "unix:"


@dataclass(frozen=True, slots=True)
class KVTransfer:
    """The settings for sending KV pages of prompts to other engines, or requesting them from other engines.

    An address is HOST:PORT, or unix:PATH on one machine.

    Raises:
        ValueError: If an address is malformed or given twice, both roles are given, or the timeout is out of range.
    """

    listen: str | None = None
    """The address at which this engine computes prompts for others; None if it does not."""
    peers: tuple[str, ...] = ()
    """The addresses of the engines that compute prompts for this one."""
    key: bytes = field(default=b"", repr=False)
    """The secret that both ends know, and prove to each other that they know."""
    timeout: float = TIMEOUT
    """The seconds that pages may take to come; after that, this engine computes the prompt itself."""

    def __post_init__(self) -> None:
        for each in (*([] if self.listen is None else [self.listen]), *self.peers):
            family_of(each)
        if self.listen is not None and self.peers:
            raise ValueError(
                "an engine is both a KV producer (--kv-listen) and a KV consumer (--kv-from): give only one of the two"
            )
        if len(set(self.peers)) < len(self.peers):
            raise ValueError("the same prefill engine is given twice: give each address once")
        if not 0 < self.timeout < 86400:
            raise ValueError(f"the timeout for KV pages is {self.timeout:g} s: give more than 0 s and less than a day")


def family_of(address: str) -> tuple[socket.AddressFamily, Any]:
    """Return the socket family and address of an address text.

    Raises:
        ValueError: If it is malformed.
    """
    if address.startswith(_UNIX):
        return socket.AF_UNIX, address.removeprefix(_UNIX)
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{address!r} is not an address for KV transfer: write HOST:PORT, such as 10.0.0.1:{PORT}")
    host = host.removeprefix("[").removesuffix("]")
    return socket.AF_INET6 if ":" in host else socket.AF_INET, (host, int(port))


def configured(text: str) -> tuple[str, str]:
    """Return the role (`listen` or `peer`) and the address that the JSON of vLLM's --kv-transfer-config describes.

    Raises:
        ValueError: If the JSON has no meaning here.
    """
    values = json_option(_OPTION, text, '{"kv_role": "kv_producer", "kv_ip": "10.0.0.1"}')
    for key in values:
        if key == "kv_connector":
            raise ValueError(
                f"{_OPTION}: the only connector is Ridgeline's own, which sends pages over a socket: leave "
                "kv_connector out"
            )
        if key not in _KEYS:
            raise ValueError(f"{_OPTION} has {key!r}, which is not supported: use only {', '.join(_KEYS)}")
    role, host, port = values.get("kv_role"), values.get("kv_ip", "127.0.0.1"), values.get("kv_port", PORT)
    if role not in ("kv_producer", "kv_consumer"):
        raise ValueError(f"{_OPTION}: kv_role is {role!r}: give kv_producer or kv_consumer")
    if not isinstance(host, str) or not isinstance(port, int) or isinstance(port, bool):
        raise ValueError(f"{_OPTION}: kv_ip must be a string and kv_port a number, such as 10.0.0.1 and {PORT}")
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    family_of(address)
    return ("listen" if role == "kv_producer" else "peer"), address
