"""Queries to a server: its model, its token counts, and its own step times."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import aiohttp
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from ridgeline.insight.bench.clock import WallClock
from ridgeline.insight.bench.job import LoadTarget, TokensPerWord
from ridgeline.insight.bench.prompt_sources import Turn, body_of, words
from ridgeline.insight.bench.request_sender import RequestSender
from ridgeline.insight.bench.transport import HttpTransport, NoResponse
from ridgeline.insight.traffic.request_record import RequestRecord

_IGNORE_EOS = ("ridgeline", "vllm", "sglang", "llamacpp")  # model owners whose servers support `ignore_eos`
_FEW, _MANY = 16, 64  # the word counts of the two prompts that measure tokens per word
_OURS = "ridgeline"
_SECONDS = 10
_STEP, _PREDICTED = "step_seconds", "step_predicted_seconds"


class _Model(msgspec.Struct):
    id: str
    owned_by: str = ""
    root: str = ""
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The description that a server gives of itself."""

    base: str
    model: str
    owner: str = ""
    """The owner of the model, which identifies the server software."""
    root: str = ""
    """The path or name that the model was loaded from."""
    context: int | None = None
    """The context length of the server's model; None if the server does not report it."""
    device: str | None = None
    """The title of the device for which the server prices its steps, if it was queried and is calibrated."""

    @property
    def is_ridgeline(self) -> bool:
        """Whether the server runs Ridgeline."""
        return self.owner == _OURS

    @property
    def takes_ignore_eos(self) -> bool:
        """Whether the server is known to support `ignore_eos`."""
        return self.owner in _IGNORE_EOS

    @property
    def local(self) -> bool:
        """Whether the server runs on this machine, as far as its URL shows: the host is localhost, 127.0.0.1 or ::1."""
        return (urlsplit(self.base).hostname or "") in ("localhost", "127.0.0.1", "::1")


def base_url(url: str) -> str:
    """Return a server's URL without a trailing `/v1`.

    Raises:
        ValueError: If it is not the URL of a server.
    """
    whole = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(whole)
        known = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        known = False
    if not known:
        raise ValueError(f"{url!r} is not the URL of a server; write one like http://127.0.0.1:8000")
    return whole.rstrip("/").removesuffix("/v1").rstrip("/")


async def fetch_server_info(base: str, headers: Mapping[str, str], model: str | None) -> ServerInfo:
    """Query a server's list of models and return its description with the selected model.

    If the server lists no models, it is assumed to have the model that `model` names.

    Args:
        base: The server's URL, without `/v1`.
        headers: The headers of the request.
        model: The model to use; None for the first in the list.

    Raises:
        NoResponse: If no server responds.
        ValueError: If the server needs an API key, is not ready, lists models but not the selected one, or lists none
            although `model` is None.
    """
    status, body = await _get(f"{base}/v1/models", headers)
    if status in (401, 403):
        raise ValueError(f"{base} needs an API key (HTTP {status}); give --api-key, or set OPENAI_API_KEY")
    try:
        models = msgspec.json.decode(body, type=_Models).data if status == 200 else []
    except (msgspec.DecodeError, RecursionError):
        models = []
    if status == 503:
        raise ValueError(f"{base} is not ready (HTTP 503); try again when it has loaded its model")
    if model is None and not models:
        raise ValueError(f"{base}/v1/models names no model (HTTP {status}); name one with --model")
    found = next((one for one in models if model in (None, one.id)), None)
    if found is not None:
        return ServerInfo(base, found.id, found.owned_by, found.root, found.max_model_len)
    if models:
        raise ValueError(f"{base} has no model {model!r}; it has {', '.join(one.id for one in models[:8])}")
    assert model is not None
    return ServerInfo(base, model)


async def _get(url: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
    """Return the status and body of a GET request.

    Raises:
        NoResponse: If there is no response.
    """
    timeout = aiohttp.ClientTimeout(total=_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
            session.get(url, allow_redirects=False) as response,
        ):
            return response.status, await response.read()
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise NoResponse(f"no server responds at {url}: {why}", unreachable=True) from None


async def measure_tokens_per_word(target: LoadTarget) -> TokensPerWord:
    """Estimate the number of tokens per word from the server's token counts of two prompts.

    The default is returned if the server does not count tokens or has no capacity now.

    Raises:
        ValueError: If the server answers no such request; the message has its reason.
    """
    counts = []
    clock = WallClock()
    transport = HttpTransport(target.url, target.headers, clock)
    try:
        for place, many in enumerate((_FEW, _MANY)):
            record = RequestRecord(place, 0, 0)
            sender = RequestSender(transport, clock, clock.now(), target.timeout)
            await sender.send(body_of(target, [], Turn(words(f"wording/{many}", many), 2)), record)
            if record.outcome == "failed" and record.input is None:
                raise ValueError(f"the server rejects or fails requests of this kind: {record.reason}")
            counts.append(record.input)
    finally:
        await transport.close()
    few, many_tokens = counts
    if few is None or many_tokens is None or many_tokens <= few:
        return TokensPerWord()
    each = (many_tokens - few) / (_MANY - _FEW)
    return TokensPerWord(few - each * _FEW, each, True)


class _State(msgspec.Struct):
    device: str | None = None
    calibrated: bool = False


async def calibrated_device(served: ServerInfo, headers: Mapping[str, str]) -> str | None:
    """Return the title of the device for which a Ridgeline server prices its steps, if that is calibrated."""
    try:
        status, body = await _get(f"{served.base}/v1/engine/state", headers)
        state = msgspec.json.decode(body, type=_State) if status == 200 else _State()
    except (NoResponse, ValueError):
        return None
    return state.device if state.calibrated else None


# -- what it says of its steps ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PhaseSteps:
    """The number and times of the steps that a server ran in one phase, prefill or decode."""

    count: float
    """The number of steps in the phase."""
    measured: float
    """The total measured seconds of the steps."""
    priced: float
    """The number of steps with a predicted time."""
    predicted: float
    """The total predicted seconds of the steps that have a prediction."""

    def since(self, before: "PhaseSteps | None") -> "PhaseSteps":
        """Return the steps that the server ran after an earlier query."""
        if before is None:
            return self
        return PhaseSteps(
            self.count - before.count,
            self.measured - before.measured,
            self.priced - before.priced,
            self.predicted - before.predicted,
        )


async def steps_by_phase(served: ServerInfo, headers: Mapping[str, str]) -> dict[str, PhaseSteps]:
    """Return the steps that a Ridgeline server has run so far, from its metrics; empty if unavailable."""
    if not served.is_ridgeline:
        return {}
    try:
        status, body = await _get(f"{served.base}/metrics", headers)
        return _steps(body.decode()) if status == 200 else {}
    except (NoResponse, ValueError):
        return {}


def _steps(text: str) -> dict[str, PhaseSteps]:
    sums: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[sample.name.removeprefix(f"{_OURS}:"), sample.labels.get("phase", "")] = sample.value
    return {
        phase: PhaseSteps(
            count,
            sums[f"{_STEP}_sum", phase],
            sums.get((f"{_PREDICTED}_count", phase), 0.0),
            sums.get((f"{_PREDICTED}_sum", phase), 0.0),
        )
        for (name, phase), count in sums.items()
        if name == f"{_STEP}_count"
    }
