"""The traffic options of `ridgeline simulate`: when requests arrive and how long they are."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal

from ridgeline.cli import options
from ridgeline.cli.flags import given_flags, panel
from ridgeline.cli.options import parse_nanoseconds
from ridgeline.insight.simulate.capacity import REQUESTS
from ridgeline.insight.traffic import arrivals
from ridgeline.insight.traffic.conversations import Conversations, FollowUps
from ridgeline.insight.traffic.lengths import Fixed, Lengths, parse_lengths
from ridgeline.insight.traffic.offered import (
    SPREAD,
    ClosedLoop,
    Offered,
    OpenLoop,
    bounded,
    draw_requests,
    jittered,
    subsampled,
    time_scaled,
    with_arrivals,
)
from ridgeline.insight.traffic.profile import parse_profile, shaped
from ridgeline.insight.traffic.think_time import ThinkTime, parse_think_time
from ridgeline.insight.traffic.workload_trace import TraceRequest, read_trace

_DURATION = "60s"  # default for generated requests
_BOUNDS = {"rate": (1e-9, 1e9), "speed": (1e-9, 1e9), "burstiness": (1e-3, 1e6)}  # ranges of numeric options
_MOST = {"users": 10**6, "requests": 10**7, "turns": 10**4}  # maximum counts; ten million requests are a 2 GB log
_INPUT, _OUTPUT = "1k", "256"  # tokens, as in ridgeline plan

_traffic = panel("Traffic")


@dataclass(frozen=True, slots=True)
class TrafficFlags:
    """The options for the arrival times and the lengths of requests."""

    trace: Path | None = _traffic(
        "A file with arrival times, lengths and shared prefixes: Azure's or BurstGPT's CSV, Mooncake's or "
        "Qwen-Bailian's JSONL, or the output of serve --record or bench serve --csv. With --rate or --users only its "
        "lengths are used."
    )
    rate: float | None = _traffic("Open loop: the number of requests per second.")
    users: int | None = _traffic(
        "Closed loop: the number of users, each of whom sends the next request after the last response."
    )
    think: str | None = _traffic(
        "The mean time between a response and the user's next request, like 2s. Think times are exponential; "
        "constant:2s makes them all equal."
    )
    turns: int = _traffic(
        "The number of turns of a conversation, each of which includes the earlier ones; --rate then counts "
        "conversations.",
        default=1,
    )
    arrival: Literal["poisson", "gamma", "constant"] = _traffic(
        "The distribution of the gaps between the requests of --rate.", default="poisson"
    )
    burstiness: float = _traffic("The shape of gamma arrivals: 1 is Poisson, less is burstier.", default=1.0)
    profile: str | None = _traffic(
        "How --rate changes over time: ramp:4:60s, spike:4:60s:30s (factor, start, duration), day:0.2:600s (share, "
        "period)."
    )
    speed: float = _traffic("Replay a trace faster by this factor: its bursts become sharper.", default=1.0)
    keep: float = _traffic(
        "Keep this share of a trace's requests, chosen at random: bursts keep their shape.", default=1.0
    )
    input: str | None = _traffic(f"The tokens of a prompt: {options.LENGTHS}. By default {_INPUT}.")
    output: str | None = _traffic(f"The tokens of a response, in the same notation. By default {_OUTPUT}.")
    exact: bool = _traffic(
        f"Use fixed lengths as they are. By default they vary by up to {SPREAD:.0%}, because requests of equal "
        "lengths run in lockstep.",
        default=False,
    )
    requests: int | None = _traffic(
        "Stop after this number of requests, or of conversations with --turns.", "--requests", "--num-prompts"
    )
    duration: str | None = _traffic(
        f"Send no requests after this time, like 10s. Default: {_DURATION}, unless --requests is given; a trace with "
        "its own times runs to its end."
    )
    seed: int = _traffic("The random seed. The same seed gives the same requests at the same times.", default=0)

    def of_capacity(self) -> "TrafficFlags":
        """Return the traffic for a capacity search, with the same number of requests at each rate.

        Raises:
            ValueError: If an option contradicts the search, such as --rate or --duration.
        """
        if self.rate is not None or self.users is not None:
            raise ValueError("--capacity searches for the rate; leave out --rate and --users")
        if self.duration is not None:
            raise ValueError("--capacity runs the same requests at each rate; give --requests in place of --duration")
        if self.speed != 1 or self.profile is not None:
            raise ValueError("--capacity searches for a steady rate; leave out --speed and --profile")
        requests = REQUESTS if self.requests is None else self.requests
        return replace(self, rate=None if self.trace is not None else 1.0, requests=requests)

    def at(self, rate: float) -> "TrafficFlags":
        """Return the same requests at another rate, with their gaps scaled.

        Raises:
            ValueError: If the trace has no rate or cannot be read.
        """
        if self.trace is None:
            return replace(self, rate=rate)
        recorded = read_trace(self.trace)
        kept = recorded if self.keep == 1 else subsampled(recorded, self.keep, self.seed)
        moments = [request.at for request in islice(kept, self.requests)]
        if not moments or moments[-1] == moments[0]:
            raise ValueError(
                f"{self.trace}: all requests arrive at the same time and have no rate; give another trace, or --rate"
            )
        return replace(self, speed=rate * (moments[-1] - moments[0]) / 1e9 / (len(moments) - 1))

    @property
    def open_loop(self) -> bool:
        """Whether requests arrive independently of responses."""
        return self.users is None

    @property
    def rated(self) -> str:
        """The unit that --rate counts: "requests" or "conversations"."""
        return "requests" if self.turns == 1 else "conversations"

    def check(self) -> None:
        """Raise ValueError for options that are invalid or cannot be combined."""
        if self.trace is None and self.rate is None and self.users is None:
            raise ValueError("the traffic is missing: give --trace FILE, --rate R (requests per second) or --users N")
        if self.rate is not None and self.users is not None:
            raise ValueError("--rate is for an open loop and --users for a closed loop; give one")
        for name, (least, most) in _BOUNDS.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise ValueError(f"--{name} is {value}; it must be a number from {least:g} to {most:g}")
        if not 0 < self.keep <= 1:
            raise ValueError(f"--keep is {self.keep}; it must be a share above 0 and at most 1")
        for name, most in _MOST.items():
            value = getattr(self, name)
            if value is not None and not 1 <= value <= most:
                raise ValueError(f"--{name} is {value}; it must be from 1 to {most:,}")
        if self.trace is not None and self.trace.is_fifo():
            raise ValueError(f"{self.trace} is a pipe, but a trace is read several times; write it to a file first")
        self._check_pairs()
        self._check_count()

    def _check_count(self) -> None:
        """Raise ValueError for more requests than a log can hold."""
        if self.rate is None or self.until is None or self.requests is not None or self.trace is not None:
            return
        if (count := self.rate * self.until / 1e9) > _MOST["requests"]:
            raise ValueError(
                f"--rate {self.rate:g} makes {count:,.0f} requests, but at most {_MOST['requests']:,} can be "
                "simulated; give a smaller --rate, a shorter --duration, or --requests"
            )

    def _check_pairs(self) -> None:
        given, generated, rated = given_flags(self), self.trace is None, self.rate is not None
        recorded = not generated and not rated and self.users is None
        of_recorded = "{} applies only to a --trace with its own arrival times; leave it out"
        of_generated = "{} does not apply to a trace, which states its own lengths; leave it out"
        own_turns = "{} is for generated conversations, but a trace states its own with its block ids; leave it out"
        for option, allowed, message in (
            ("--think", self.users is not None or self.turns > 1, "{} needs --users or several --turns; leave it out"),
            ("--turns", generated, own_turns),
            ("--arrival", rated, "{} needs --rate; leave it out"),
            ("--profile", rated, "{} sets how --rate changes over time; give both"),
            ("--burstiness", self.arrival == "gamma", "{} is the shape of --arrival gamma; give both"),
            ("--speed", recorded, of_recorded),
            ("--keep", recorded, of_recorded),
            ("--input", generated, of_generated),
            ("--output", generated, of_generated),
            ("--exact", generated, of_generated),
            ("--exact", not generated or self._fixed, "{} needs a fixed --input or --output; leave it out"),
        ):
            if option in given and not allowed:
                raise ValueError(message.format(option))

    def offered(self) -> Callable[[], Offered]:
        """Return a function that generates the requests, the same ones at each call.

        Raises:
            ValueError: If an option is invalid, or a file cannot be read, now or in a later call.
        """
        self.check()
        if self.profile is not None:
            parse_profile(self.profile)
        lengths = self._lengths("--input", self.input or _INPUT), self._lengths("--output", self.output or _OUTPUT)
        made = partial(self._offered, lengths, self.until, self._think_time())
        made()  # refuse an unreadable file before a model is built
        return made

    def _think_time(self) -> ThinkTime:
        return parse_think_time(self.think, "--think")

    def _lengths(self, option: str, text: str) -> Lengths:
        found = parse_lengths(text, option)
        return found if self.exact else jittered(found)

    @property
    def _fixed(self) -> bool:
        """Whether the prompt or output length is the same for all requests."""
        texts = (("--input", self.input or _INPUT), ("--output", self.output or _OUTPUT))
        return any(isinstance(parse_lengths(text, option), Fixed) for option, text in texts)

    @property
    def until(self) -> int | None:
        """The time in nanoseconds after which no request arrives; None if something else ends the traffic.

        Raises:
            ValueError: If --duration is malformed.
        """
        text = self.duration
        if text is None:
            if self.requests is not None or (self.trace is not None and self.open_loop and self.rate is None):
                return None
            text = _DURATION
        return parse_nanoseconds(text, "--duration")

    def _offered(self, lengths: tuple[Lengths, Lengths], until: int | None, think: ThinkTime) -> Offered:
        requests = self._requests(lengths)
        begun: Offered
        if self.users is None:
            begun = OpenLoop(bounded(requests, self.requests, until))
        else:
            begun = ClosedLoop(self.users, think, bounded(requests, self.requests, None), until, self.seed)
        if self.turns == 1:
            return begun
        return Conversations(begun, self.turns, FollowUps(*lengths, think, self.seed), until)

    def _requests(self, lengths: tuple[Lengths, Lengths]) -> Iterator[TraceRequest]:
        moments = self._moments()
        if self.trace is None:
            return draw_requests(moments, *lengths, self.seed)
        recorded = read_trace(self.trace)
        if self.users is not None or self.rate is not None:
            return with_arrivals(recorded, moments)
        return time_scaled(recorded if self.keep == 1 else subsampled(recorded, self.keep, self.seed), self.speed)

    def _moments(self) -> Iterator[int]:
        """Return the arrival times. In a closed loop they have no effect."""
        if self.rate is None:
            return arrivals.constant(1.0)
        steady = self._steady(self.rate)
        return steady if self.profile is None else shaped(steady, parse_profile(self.profile))

    def _steady(self, rate: float) -> Iterator[int]:
        match self.arrival:
            case "constant":
                return arrivals.constant(rate)
            case "gamma":
                return arrivals.gamma(rate, self.burstiness, self.seed)
            case "poisson":
                return arrivals.poisson(rate, self.seed)

    def in_words(self) -> str:
        """Return a description such as `Poisson arrivals, 12 per second, 1k tokens in and 256 out, ...`."""
        if self.users is not None:
            thinking = "" if self.think is None else f" who think for {self._think_time().in_words}"
            how = f"{self.users:,} user{'s' if self.users > 1 else ''}{thinking}"
        elif self.rate is not None:
            name = {"poisson": "Poisson", "gamma": f"gamma ({self.burstiness:g})", "constant": "even"}[self.arrival]
            how = f"{name} arrivals, {self.rate:.4g} per second" + (f" ({self.profile})" if self.profile else "")
        else:
            faster = "" if self.speed == 1 else f" at {self.speed:.4g} times the speed"
            how = f"requests as recorded{faster}" + ("" if self.keep == 1 else f", {self.keep:.0%} of them")
        if self.trace is not None:
            return f"{how}, lengths of {self.trace.name}"
        given, made = self.input or _INPUT, self.output or _OUTPUT
        how += f", {given} tokens in and {made} out" + (
            "" if self.exact or not self._fixed else f", fixed lengths +-{SPREAD:.0%}"
        )
        if self.turns == 1:
            return how
        how += f", conversations of {self.turns} turns"
        if self.users is not None:
            return how  # already states the think time
        after = "immediately" if self.think is None else self._think_time().in_words
        return f"{how}, each {after} after the previous response"
