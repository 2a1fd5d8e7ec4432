"""The options of `ridgeline bench serve`, and their conversion into a load job."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from ridgeline.cli import options
from ridgeline.cli.flags import panel
from ridgeline.cli.options import api_key_of, parse_seconds
from ridgeline.insight.bench.job import LoadPattern, LoadTarget, PromptDataset
from ridgeline.insight.bench.server_probe import base_url
from ridgeline.insight.bench.sweep import MIN_REQUESTS
from ridgeline.insight.traffic.lengths import parse_lengths
from ridgeline.insight.traffic.slo import SLO, parse_slo
from ridgeline.insight.traffic.think_time import parse_think_time

MAX_PROCESSES = 256
_REQUESTS = 100  # the default if no option limits the run
_INPUT, _OUTPUT = "512", "128"  # tokens
_SLACK = 1.1  # safety factor on lengths, because random words vary around the measured mean of tokens per word

Url = Annotated[str, typer.Argument(help="Any OpenAI-compatible server, like http://127.0.0.1:8000.")]


_load, _requests, _server, _output = map(panel, ("Load", "Requests", "The server", "Output"))


@dataclass(frozen=True, slots=True)
class LoadFlags:
    """The options for the arrival and the sending of requests."""

    rate: float | None = _load(
        "Open loop: send this number of requests per second, whatever the server does.", "--rate", "--request-rate"
    )
    concurrency: int | None = _load(
        "Closed loop: the number of users, each of whom sends the next request after the last response. By default 1."
    )
    sweep: bool = _load(
        "Raise the rate until requests miss their targets, then search for the knee. Starts at --rate, or at half of "
        "what one user gets.",
        default=False,
    )
    arrival: Literal["poisson", "gamma", "constant"] = _load(
        "The distribution of the gaps between the requests of an open loop.", default="poisson"
    )
    burstiness: float = _load("The shape of gamma arrivals: 1 is Poisson, less is burstier.", default=1.0)
    speed: float = _load("Replay a trace faster by this factor.", default=1.0)
    max_concurrency: int | None = _load(
        "The maximum number of running requests in an open loop. Waiting for a free place counts as part of TTFT."
    )
    requests: int | None = _load(
        "Stop after this number of requests. Default: 100; in a sweep 50 or 15 s per rate, and at least 20.",
        "--requests",
        "--num-prompts",
    )
    duration: str | None = _load("Send no requests after this time, like 60s, and wait for the running ones.")
    warmup: int = _load(
        "The number of requests before the measurement, one at a time, that are not counted.", default=2
    )
    max_errors: float = _load(
        "Give up if a larger share of the requests fails; 429 and 503 do not count as failures.", default=0.1
    )
    processes: int | None = _load(
        "The number of client processes. Default: 1, and again with up to one per core if that one was late or busy."
    )
    seed: int | None = _load(
        "The random seed. The same seed gives the same prompts at the same times. By default a random one, which the "
        "report names."
    )

    def load(self, seed: int, *, traced: bool) -> LoadPattern:
        """Return the load pattern that the options describe.

        Args:
            seed: The seed of the arrivals.
            traced: Whether requests come from a trace.

        Raises:
            ValueError: If options are invalid or cannot be combined.
        """
        replayed = traced and self.rate is None and not self.sweep
        closed = self.concurrency is not None or not (self.sweep or traced or self.rate is not None)
        self._check(closed=closed, replayed=replayed and not closed)
        ends = self.requests is not None or self.duration is not None or self.sweep
        return LoadPattern(
            users=(self.concurrency or 1) if closed else None,
            arrivals="trace" if replayed else self.arrival,
            rate=1.0 if self.rate is None else self.rate,
            burstiness=self.burstiness,
            speed=self.speed,
            most_under_way=self.max_concurrency,
            requests=self.requests if ends else _REQUESTS,
            seconds=None if self.duration is None else parse_seconds(self.duration, "--duration"),
            most_failed=self.max_errors,
            stop_overloaded=self.sweep,
            seed=seed,
        )

    def _check(self, *, closed: bool, replayed: bool) -> None:
        for name in ("concurrency", "max_concurrency", "requests", "processes"):
            _at_least(1, name, getattr(self, name))
        _at_least(0, "warmup", self.warmup)
        if self.processes is not None and self.processes > MAX_PROCESSES:
            raise ValueError(f"--processes is {self.processes}; it must be at most {MAX_PROCESSES}")
        for name in ("rate", "burstiness", "speed"):
            number = getattr(self, name)
            if number is not None and not (math.isfinite(number) and number > 0):
                raise ValueError(f"--{name} is {number}; it must be a number above 0")
        if not 0 <= self.max_errors <= 1:
            raise ValueError(f"--max-errors is {self.max_errors}; it must be a share from 0 to 1")
        if self.sweep and self.requests is not None and self.requests < MIN_REQUESTS:
            raise ValueError(f"--requests is {self.requests}; a sweep needs at least {MIN_REQUESTS} to judge each rate")
        if closed and (self.rate is not None or self.sweep):
            raise ValueError("--concurrency is for a closed loop, --rate and --sweep for an open loop; give one")
        if closed and self.max_concurrency is not None:
            raise ValueError(
                "--max-concurrency is for an open loop; leave it out, because --concurrency sets the number of "
                "running requests"
            )
        if self.arrival != "poisson" and (closed or replayed):
            raise ValueError("--arrival applies only to an open loop with --rate or --sweep; leave it out")
        if self.burstiness != 1 and self.arrival != "gamma":
            raise ValueError("--burstiness is the shape of --arrival gamma; give both")
        if self.speed != 1 and not replayed:
            raise ValueError("--speed applies only to a --trace with its own arrival times; leave it out")


@dataclass(frozen=True, slots=True)
class DataFlags:
    """The options for the prompts and the output lengths."""

    input: str | None = _requests(
        f"The tokens of a prompt of random words: {options.LENGTHS}. Default: 512, or half of the context if it is "
        "too short.",
        "--input",
        "--random-input-len",
    )
    output: str | None = _requests(
        "The tokens of a response, in the same notation. Default: 128, or a quarter of the context if it is too "
        "short; with prompts from a file what the model generates.",
        "--output",
        "--random-output-len",
    )
    prefix: int = _requests("The number of tokens at the start of the prompts that all share.", default=0)
    prefixes: int = _requests("The number of different shared prefixes.", default=1)
    turns: int = _requests("The number of turns of a conversation; each request includes the earlier turns.", default=1)
    think: str | None = _requests(
        "The mean time between a response and the next turn, like 2s. Think times are exponential; constant:2s makes "
        "them all equal."
    )
    prompts: Path | None = _requests(
        "A file with prompts: a ShareGPT .json, or JSON lines with prompt or messages (and max_tokens).",
        "--prompts",
        "--dataset-path",
    )
    trace: Path | None = _requests(
        "Use the lengths and shared prefixes of a trace and, without --rate and --concurrency, its times: Azure's or "
        "BurstGPT's CSV, Mooncake's or Qwen-Bailian's JSONL, or the output of serve --record or bench serve --csv."
    )
    token_ids: int | None = _requests(
        "Send prompts of random token ids below this number instead of words: exact lengths, for /v1/completions only."
    )

    def data(self, seed: int, *, chat: bool) -> PromptDataset:
        """Return the prompt dataset for the chat or the completions route.

        Raises:
            ValueError: If options are invalid or cannot be combined.
        """
        self._check(chat=chat)
        path = self.trace or self.prompts
        return PromptDataset(
            kind="trace" if self.trace is not None else "file" if self.prompts is not None else "random",
            path="" if path is None else str(path),
            input=_INPUT if self.input is None else self.input,
            output=self.output if self.output is not None or self.prompts is not None else _OUTPUT,
            prefix=self.prefix,
            prefixes=self.prefixes,
            turns=self.turns,
            think=self.think,
            vocabulary=self.token_ids,
            seed=seed,
        )

    def fitted(self, data: PromptDataset, context: int | None) -> PromptDataset:
        """Return `data` with default lengths shortened to fit a context.

        The prompt gets half of the remaining context, then the output half of the rest. Lengths that the user stated
        never change. The data stay unchanged if prompts come from a file or a trace, if the context is unknown, or if
        the stated lengths leave no room.
        """
        if context is None or data.kind != "random" or data.output is None:
            return data
        room = (context - data.prefix) // data.turns
        input, output = parse_lengths(data.input, "--input").p99, parse_lengths(data.output, "--output").p99
        if _SLACK * (input + output) <= room:
            return data
        if self.input is None:
            input = min(input, (room - (0 if self.output is None else output)) // 2)
        if self.output is None:
            output = min(output, (room - input) // 2)
        if min(input, output) < 1:
            return data
        return msgspec.structs.replace(
            data,
            input=str(input) if self.input is None else data.input,
            output=str(output) if self.output is None else data.output,
        )

    def _check(self, *, chat: bool) -> None:
        for name, least in (("prefix", 0), ("prefixes", 1), ("turns", 1), ("token_ids", 1)):
            _at_least(least, name, getattr(self, name))
        if self.prompts is not None and self.trace is not None:
            raise ValueError("--prompts and --trace both define the prompts; give one")
        if self.token_ids is not None and (chat or self.turns > 1 or self.prompts is not None):
            raise ValueError("--token-ids works only with /v1/completions, one turn and no --prompts; leave it out")
        if self.prompts is not None or self.trace is not None:
            for name, given in (
                ("input", self.input is not None),
                ("turns", self.turns > 1),
                ("prefix", self.prefix > 0),
            ):
                if given:
                    raise ValueError(
                        f"--{name} is for prompts of random words; a file or a trace defines it: leave it out"
                    )
        if self.trace is not None and self.output is not None:
            raise ValueError("--output does not apply to a trace, which states the response lengths; leave it out")
        if self.prefixes > 1 and not self.prefix:
            raise ValueError("--prefixes is the number of different prefixes of --prefix tokens; give both")
        if self.think is not None and self.turns == 1:
            raise ValueError("--think is the time between --turns; give both")
        parse_think_time(self.think, "--think")  # refuse a malformed one before the run


@dataclass(frozen=True, slots=True)
class TargetFlags:
    """The options for the server, its route and the prediction to compare with."""

    model: str | None = _server("The model, if the server has several; its first by default.")
    endpoint: Literal["completions", "chat"] = _server(
        "/v1/completions or /v1/chat/completions.", default="completions"
    )
    api_key: str | None = _server(
        "The server's API key; by default RIDGELINE_API_KEY or OPENAI_API_KEY from the environment."
    )
    ignore_eos: bool | None = _server(
        "Keep generating after the end-of-sequence token, to the requested length. By default if a length is "
        "requested and the server is known to support the field.",
        "--ignore-eos/--no-ignore-eos",
    )
    extra_body: str | None = _server("Further fields for each request, as a JSON object.")
    timeout: str = _server("The time after which a request is given up.", default="600s")
    predict: str | None = _server(
        "Compare the measurement with the prediction for this model: a folder, a config.json or a catalogue name. By "
        "default a local Ridgeline server is compared with its own prediction."
    )
    predict_on: str | None = _server(
        "The device for the prediction: a name, a device file, `this` (probed if it is not calibrated) or `cuda`. By "
        "default what a local Ridgeline server reports, if it is calibrated."
    )

    def target(self, url: str) -> LoadTarget:
        """Return the target of the requests: the server's address, the route and the headers.

        Raises:
            ValueError: If an option is malformed.
        """
        key = api_key_of(self.api_key)
        return LoadTarget(
            base_url(url),
            self.model or "",
            self.endpoint,
            {"Authorization": f"Bearer {key}"} if key else {},
            more=_object(self.extra_body),
            timeout=parse_seconds(self.timeout, "--timeout"),
        )


@dataclass(frozen=True, slots=True)
class BenchOutputFlags:
    """The options for the objectives and the output files."""

    slo: str | None = _output("What a good request meets, like ttft=200ms,tpot=50ms,e2e=5s.", "--slo", "--goodput")
    csv: Path | None = _output("Write one line per request to this file.")
    report: Path | None = _output("Write the results with charts to this HTML file, which needs no network.")
    force: bool = _output("Overwrite existing files.", default=False)
    as_json: options.Json = False

    def objectives(self) -> SLO | None:
        """Return the latency objectives of a request; None if there are none.

        Raises:
            ValueError: If --slo is malformed.
        """
        return None if self.slo is None else parse_slo(self.slo)


def _at_least(least: int, name: str, value: int | None) -> None:
    if value is not None and value < least:
        raise ValueError(f"--{name.replace('_', '-')} is {value}; it must be at least {least}")


def _object(text: str | None) -> dict[str, object]:
    """Return the fields of a JSON object.

    Raises:
        ValueError: If the text is not a JSON object.
    """
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, object])
    except (msgspec.DecodeError, RecursionError):
        raise ValueError('--extra-body is not a JSON object; write one like {"top_k": 1}') from None
