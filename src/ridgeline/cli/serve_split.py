"""`ridgeline serve --split P:D`, `--kv-listen` and `--kv-from`: disaggregated prefill and decode."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.cli.flags import panel
from ridgeline.cli.options import parse_seconds
from ridgeline.cli.replica_options import check_cores, pair, split_memory
from ridgeline.cli.serve_replicas import ReplicaFlags
from ridgeline.core.checkpoint import ModelSource
from ridgeline.core.models.common.model import Model
from ridgeline.engine import placement
from ridgeline.engine.async_llm import AsyncLLM
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.transfer.config import PORT, TIMEOUT, KVTransfer, configured
from ridgeline.engine.transfer.identity import check_transfer
from ridgeline.engine.worker.process_handle import ChildProcess, ProcessHandle
from ridgeline.insight.traffic.routers import router_named
from ridgeline.server.lifecycle import Servable, ServedLLM
from ridgeline.server.server_settings import is_loopback

if TYPE_CHECKING:  # a server with one engine must not import these
    from ridgeline.server.disaggregated import ServedDisaggregated

_split = panel("Disaggregated prefill and decode")
_ROLES = ("split", "kv_from", "kv_listen", "kv_transfer_config")
_LEAST_KEY = 16  # bytes


@dataclass(frozen=True, slots=True)
class SplitFlags:
    """The options for disaggregated serving: which engines run prefill, and how the KV reaches the decode engines."""

    split: str | None = _split(
        "Run this number of prefill engines and decode engines on this machine, like 1:1.", metavar="P:D"
    )
    kv_listen: str | None = _split(
        f"Run prefills for other servers at this address, like 10.0.0.1:{PORT}; they connect with --kv-from.",
        metavar="HOST:PORT",
    )
    kv_from: str | None = _split(
        "Let the servers at these --kv-listen addresses run the prefills, and decode here.", metavar="HOST:PORT,..."
    )
    kv_key_file: Path | None = _split(
        "A file with a secret of 16 bytes or more, the same on both sides of --kv-from; required between machines."
    )
    kv_timeout: str | None = _split(
        f"The maximum time to wait for a prompt's KV cache; {TIMEOUT:g}s by default. After that the prompt runs here."
    )
    kv_transfer_config: str | None = _split(
        'vLLM\'s option, in JSON: {"kv_role": "kv_producer", "kv_ip": "10.0.0.1", "kv_port": '
        f"{PORT}}}, or kv_consumer with the address of a producer.",
        metavar="JSON",
    )

    @property
    def given(self) -> bool:
        """Whether prefill and decode are disaggregated in any way."""
        return self.split is not None or self.transfer() is not None

    def transfer(self) -> KVTransfer | None:
        """Return the KV transfer that this server offers to others or requests from them; None for neither.

        Raises:
            ValueError: If the options contradict each other or are unsafe.
        """
        listen, peers = self.kv_listen, tuple(each.strip() for each in (self.kv_from or "").split(",") if each.strip())
        if self.kv_from is not None and not peers:
            raise ValueError(f"--kv-from is empty; give the --kv-listen of a server, like 10.0.0.1:{PORT}")
        if self.kv_transfer_config is not None:
            if listen is not None or peers:
                raise ValueError("--kv-transfer-config sets the same as --kv-listen and --kv-from; give one of them")
            role, address = configured(self.kv_transfer_config)
            listen, peers = (address, ()) if role == "listen" else (None, (address,))
        if listen is None and not peers:
            if self.kv_key_file is not None:
                raise ValueError("--kv-key-file needs --kv-listen or --kv-from; give one of them, or leave it out")
            return None
        if self.split is not None:
            raise ValueError(
                "--split starts all engines itself; leave out --kv-listen, --kv-from and --kv-transfer-config"
            )
        if any(address.startswith("unix:") for address in (listen or "", *peers)):
            raise ValueError("the KV transfer between two servers needs HOST:PORT; on one machine give --split instead")
        key = b"" if self.kv_key_file is None else _key(self.kv_key_file)
        if listen is not None and self.kv_timeout is not None:
            raise ValueError("--kv-timeout applies only to --kv-from; leave it out")
        transfer = KVTransfer(listen, peers, key, self._timeout())
        if listen is not None and not key and not is_loopback(listen.rpartition(":")[0].strip("[]")):
            raise ValueError(
                f"--kv-listen {listen} accepts connections from other machines, which could read the KV cache of any "
                "prompt: give --kv-key-file FILE"
            )
        return transfer

    def _timeout(self) -> float:
        return TIMEOUT if self.kv_timeout is None else parse_seconds(self.kv_timeout, "--kv-timeout")

    def counts(self) -> tuple[int, int]:
        """Return the numbers of prefill and decode engines on this machine; 0 and 1 without --split.

        Raises:
            ValueError: If --split is malformed.
        """
        return (0, 1) if self.split is None else pair(self.split, "--split")

    def check(
        self, pipelines: Sequence[ModelSource], replicas: ReplicaFlags, priced: str | None, stalled_seconds: float
    ) -> None:
        """Raise ValueError for options that cannot be combined.

        Args:
            pipelines: The diffusion pipelines to serve.
            replicas: The replica options.
            priced: The device of --priced; None if it was not given.
            stalled_seconds: The stall timeout of ServerSettings.
        """
        if not self.given:
            if self.kv_timeout is not None:
                raise ValueError("--kv-timeout is for --kv-from and --split; give one of them, or leave it out")
            return
        option = next(f"--{name.replace('_', '-')}" for name in _ROLES if getattr(self, name) is not None)
        if pipelines:
            raise ValueError(
                f"{option} is for language models, but {pipelines[0].name} generates images; leave one of them out"
            )
        if priced is not None:
            raise ValueError(
                f"{option} transfers the KV cache, but with --priced there is none; leave it out, or use ridgeline "
                "simulate --split"
            )
        transfer = self.transfer()
        if replicas.given and (self.split is not None or (transfer is not None and transfer.listen is not None)):
            raise ValueError(f"{option} sets the engines; leave out --replicas, --scale and --ray-address")
        self.counts()
        if self._timeout() >= stalled_seconds and (transfer is None or transfer.peers):
            raise ValueError(
                f"--kv-timeout is {self._timeout():g} s, but an engine that waits for --stall-timeout "
                f"({stalled_seconds:g} s) counts as hanging; give a shorter --kv-timeout"
            )


def _key(path: Path) -> bytes:
    """Return the shared secret from a file.

    Raises:
        ValueError: If the file cannot be read or the secret is too short.
    """
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise ValueError(
            f"--kv-key-file {path} cannot be read: {error.strerror}; give a file with 16 bytes or more"
        ) from None
    if len(key) < _LEAST_KEY:
        raise ValueError(
            f"--kv-key-file {path} has {len(key)} bytes; give {_LEAST_KEY} or more, like openssl rand -hex 32"
        )
    return key


def check_split(flags: SplitFlags, built: Model, name: str, settings: EngineSettings, threads: int | None) -> None:
    """Refuse a model or engine options that disaggregation does not support, and more engines than cores.

    Args:
        flags: The options for disaggregated serving.
        built: The model.
        name: The name of the model.
        settings: The settings of one engine.
        threads: The threads per engine that the user requested; None for a default.

    Raises:
        ModelRefused: If the model cannot be disaggregated.
        ValueError: If the options cannot be combined with --split.
    """
    check_transfer(built, settings.ranks, prefix_cache=settings.prefix_cache, name=name)
    if flags.split is None:
        return
    if placement.device_named(settings.device).type != "cpu":
        raise ValueError(
            "--split runs on this machine's CPU; for GPUs start two servers with --kv-listen and --kv-from"
        )
    check_cores(sum(flags.counts()), threads or 1)


def served_split(flags: SplitFlags, one: ServedLLM) -> "ServedDisaggregated":
    """Return the servable that --split describes.

    Args:
        flags: The options for disaggregated serving.
        one: The model as a single engine would serve it.
    """
    from ridgeline.server.disaggregated import ServedDisaggregated

    prompts, answers = flags.counts()
    one = replace(one, settings=split_memory(one.settings or EngineSettings(), prompts + answers))

    def answering(transfer: KVTransfer, computing: Sequence[AsyncLLM]) -> Servable[Any]:
        served = replace(one, transfer=transfer, prefill_engines=computing)
        if answers == 1:
            return served
        from ridgeline.server.replicas.served_replicas import ServedReplicas

        return ServedReplicas(served, answers, lambda _: ChildProcess(), lambda: router_named("least", 0), where=_where)

    return ServedDisaggregated(one, prompts, answering, flags._timeout())


def _where(place: ProcessHandle | None) -> str:
    assert isinstance(place, ChildProcess)
    return f"process {place.pid} of this machine"
