"""Options of `ridgeline bench serve`, each declared once."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer


def _panel(name: str) -> Callable[..., Any]:
    """Options under a heading of the help."""
    return lambda text, *names: typer.Option(*names, help=text, rich_help_panel=name)


_load, _asked, _server, _output = map(_panel, ("Load", "What is asked", "The server", "Output"))
_LENGTHS = "512, 1k (= 1,024), uniform:50:200 or lognormal:512:0.5 (median, sigma)"

Url = Annotated[str, typer.Argument(help="Any OpenAI-compatible server, like http://127.0.0.1:8000.")]

# -- load -------------------------------------------------------------------------------------------------------------

Rate = Annotated[
    float | None, _load("Open loop: so many requests a second, whatever the server does.", "--rate", "--request-rate")
]
Concurrency = Annotated[
    int | None, _load("Closed loop: so many users, each asking again when it has its answer. By default 1.")
]
Sweep = Annotated[
    bool,
    _load(
        "Raise the rate until requests are no longer good, then look for the knee. Begins at --rate, or at half of "
        "what one user gets.",
        "--sweep",
    ),
]
Arrival = Annotated[
    Literal["poisson", "gamma", "constant"], _load("How the gaps between the requests of an open loop are drawn.")
]
Burstiness = Annotated[float, _load("Shape of gamma arrivals: 1 is Poisson, less comes in bursts.")]
Speed = Annotated[float, _load("Replay a trace so many times as fast.")]
MaxConcurrency = Annotated[
    int | None, _load("Of an open loop, most requests under way. Waiting for a place is part of TTFT.")
]
Requests = Annotated[
    int | None,
    _load(
        "End after so many. By default 100; of a sweep 50 or 15 s at each rate, and 20 at least.",
        "--requests",
        "--num-prompts",
    ),
]
Duration = Annotated[str | None, _load("Send none after this, like 60s, and wait for those under way.")]
Warmup = Annotated[int, _load("Requests before, one by one, that are not counted.")]
MaxErrors = Annotated[float, _load("Give up when more than this share failed; 429 and 503 do not count as failed.")]
Processes = Annotated[
    int | None, _load("Client processes. By default 1, and again with more where that one was late or busy.")
]
Seed = Annotated[
    int | None,
    _load("Same seed: the same prompts at the same moments. By default a new one, which the report names."),
]

# -- what is asked ----------------------------------------------------------------------------------------------------

Input = Annotated[str, _asked(f"Tokens of a prompt of random words: {_LENGTHS}.", "--input", "--random-input-len")]
Output = Annotated[
    str | None,
    _asked(
        "Tokens of an answer, written so too. By default 128, of a file's prompts what the model makes of them.",
        "--output",
        "--random-output-len",
    ),
]
Prefix = Annotated[int, _asked("Tokens that prompts begin with and share.")]
Prefixes = Annotated[int, _asked("How many such beginnings there are.")]
Turns = Annotated[int, _asked("Questions of a conversation; each carries what was said before.")]
Think = Annotated[str | None, _asked("From an answer to the next question, like 2s.")]
Prompts = Annotated[
    Path | None,
    _asked(
        "A file: a .json as ShareGPT has it, or lines of JSON with prompt or messages (and max_tokens).",
        "--prompts",
        "--dataset-path",
    ),
]
Trace = Annotated[
    Path | None,
    _asked(
        "Lengths, shared prefixes and, without --rate and --concurrency, moments of a trace: Azure's or BurstGPT's "
        "CSV, Mooncake's JSONL, or what serve --record wrote."
    ),
]
TokenIds = Annotated[
    int | None, _asked("Prompts of random token ids below this instead of words: exact lengths, completions only.")
]

# -- the server -------------------------------------------------------------------------------------------------------

Model = Annotated[str | None, _server("Which of its models. By default the first.")]
Endpoint = Annotated[Literal["completions", "chat"], _server("/v1/completions or /v1/chat/completions.")]
ApiKey = Annotated[str | None, _server("Its key; by default RIDGELINE_API_KEY or OPENAI_API_KEY of the environment.")]
IgnoreEos = Annotated[
    bool | None,
    _server(
        "Whether answers go on after their end token, to the length asked for. By default where lengths are asked for "
        "and the server is known to take the field.",
        "--ignore-eos/--no-ignore-eos",
    ),
]
ExtraBody = Annotated[str | None, _server("Further fields of each request, as a JSON object.")]
Timeout = Annotated[str, _server("Give a request up after this.")]
Predict = Annotated[
    str | None,
    _server(
        "Hold it against what the price says of this model: a folder, a config.json or a catalogue name. By default a "
        "local server of ours against its own."
    ),
]
PredictOn = Annotated[
    str | None,
    _server(
        "What it would run on: a card, a card file, `this` (probed where it is not calibrated) or `cuda`. By default "
        "what a local server of ours says, where that is calibrated."
    ),
]

# -- output -----------------------------------------------------------------------------------------------------------

Slo = Annotated[
    str | None, _output("What a good request keeps to, like ttft=200ms,tpot=50ms,e2e=5s.", "--slo", "--goodput")
]
Csv = Annotated[Path | None, _output("Write a line for each request to this file.")]
Force = Annotated[bool, _output("Write over files that exist.", "--force")]
Report = Annotated[Path | None, _output("Write all of it with figures to this HTML file, which needs no network.")]
