"""The aliases for options of vLLM: each is renamed, accepted without effect, or refused with a reason.

Nothing is silently ignored: an option without effect only accepts values that describe what happens anyway. Underscores
in names count as hyphens, and a flag `--name` also has `--no-name`. The first row that applies to a command wins.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Protocol

_NEAR = 0.75  # minimum similarity of a suggestion for an unknown option
_NEVER_MEANT = ("--insecure",)  # options that a typo must never lead to
MODEL = "model"
"""The name of the model argument, for users who pass it as an option."""


@dataclass(frozen=True, slots=True)
class RenamedOption:
    """An alias that stands for one of Ridgeline's own options."""

    names: tuple[str, ...]
    """The names that are accepted as aliases, such as vLLM's spelling."""
    option: str
    """The name of the Ridgeline option or argument that the alias stands for."""
    flag: bool = False
    values: Mapping[str, str] | None = None
    """The values to translate into Ridgeline's; an empty string omits the option."""

    def applies(self, options: Collection[str]) -> bool:
        """Return whether a command with these options and arguments has the canonical option."""
        return self.option in options


@dataclass(frozen=True, slots=True)
class NoOpOption:
    """An option that has no effect: it accepts values that describe the actual behaviour and refuses all others."""

    names: tuple[str, ...]
    values: tuple[str, ...]
    """The values that the option accepts, in lower case."""
    why: str
    """The text for the error message: what Ridgeline does with or without the option, and what to use instead."""
    flag: bool = False
    marks: str = "--kv-memory"
    """The option that a command must have for this option without effect to be accepted."""

    def applies(self, options: Collection[str]) -> bool:
        """Return whether a command with these options accepts this option."""
        return self.marks in options

    def check(self, name: str, value: str | bool) -> None:
        """Raise ValueError for a value that requests something else than what happens anyway."""
        if str(value).lower() not in self.values:
            raise ValueError(f"{name}{'' if self.flag else f' {value}'} is not supported: {self.why}")


Alias = RenamedOption | NoOpOption

ALIASES: tuple[Alias, ...] = (
    RenamedOption(("--model",), MODEL),
    # -- old names of ours, for one release after 0.1
    RenamedOption(("--cards",), "--compare-devices"),
    RenamedOption(("--max-picture-memory",), "--max-image-memory"),
    RenamedOption(("--max-clip-storage",), "--max-video-storage"),
    RenamedOption(("--clip-lifetime",), "--video-lifetime"),
    RenamedOption(("--picture",), "--svg"),
    # -- the engine
    RenamedOption(("--max-model-len",), "--context", values={"auto": "", "-1": ""}),
    RenamedOption(("--max-num-batched-tokens",), "--max-batch-tokens"),
    RenamedOption(("--max-num-seqs",), "--max-requests"),
    RenamedOption(("--long-prefill-token-threshold",), "--chunk", values={"0": ""}),
    RenamedOption(("--gpu-memory-utilization",), "--memory-share"),
    RenamedOption(("--gpu-memory-utilization",), "--memory-utilization"),
    RenamedOption(("--kv-cache-memory-bytes",), "--kv-memory"),
    RenamedOption(("--kv-cache-dtype", "--kv-dtype"), "--kv", values={"auto": "", "fp8_e4m3": "fp8"}),
    RenamedOption(("--block-size",), "--page-size"),
    RenamedOption(("--enable-prefix-caching",), "--prefix-cache", flag=True),
    NoOpOption(
        ("--enable-prefix-caching",), ("false",),
        "this command has no prefix cache and computes every prompt in full; leave it out", flag=True,
    ),
    RenamedOption(("--enable-cfg-parallel",), "--cfg-parallel", flag=True),
    NoOpOption(
        ("--cfg-parallel-size",), ("1",),
        "--cfg-parallel alone already runs the two passes of guidance in two processes; give 1",
        marks="--cfg-parallel",
    ),
    NoOpOption(
        ("--cfg-parallel",), ("false",),
        "the plan shows it as one way to divide a request over several devices: give --devices 2 and --section cards",
        flag=True, marks="--eager",
    ),
    NoOpOption(
        ("--step-cache",), ("0",),
        "a plan cannot know which passes will be skipped, and predicts full passes as an upper limit; leave it out",
        marks="--eager",
    ),
    RenamedOption(("--tensor-parallel-size", "-tp", "--tp", "--gpus", "--num-gpus"), "--devices"),
    RenamedOption(("--tensor-parallel-size", "-tp", "--tp"), "--tensor-parallel"),
    NoOpOption(("--pipeline-parallel-size", "-pp"), ("1",), "layers are not divided into a pipeline; give 1"),
    RenamedOption(("--data-parallel-size", "-dp"), "--replicas"),
    NoOpOption(("--data-parallel-size", "-dp"), ("1",), "one process has one engine; give 1, or serve with --replicas"),
    NoOpOption(
        ("--data-parallel-size", "-dp"), ("1",),
        "--users and --rate plan replicas, and --enable-dp-attention divides requests among --devices; give 1",
        marks="--compare",
    ),
    NoOpOption(
        ("--enable-expert-parallel",), ("false",),
        "a plan divides each expert over all --devices; leave it out, or give --enable-dp-attention to divide the "
        "requests too",
        flag=True, marks="--memory-utilization",
    ),
    NoOpOption(
        ("--quantization", "-q"), (),
        "weights keep the checkpoint's format unless --weights converts them while loading, like --weights int8; "
        "leave it out",
    ),
    NoOpOption(("--load-format",), ("auto", "safetensors"), "the format is detected from the file; give auto"),
    NoOpOption(
        ("--enable-chunked-prefill",), ("true",),
        "a prompt longer than a step's budget always runs in chunks; raise --max-batch-tokens instead", flag=True,
    ),
    NoOpOption(("--swap-space",), ("0",), "a preempted request is recomputed, and nothing is swapped out; give 0"),
    NoOpOption(("--cpu-offload-gb",), ("0",), "weights are not offloaded; give 0"),
    RenamedOption(("--num-speculative-tokens",), "--speculate-tokens"),
    NoOpOption(
        ("--speculative-config", "-sc"), (),
        "speech models do not support speculative decoding; leave it out", marks="--task",
    ),
    NoOpOption(
        ("--async-scheduling",), ("false",),
        "each step is scheduled after the previous one has finished; leave it out", flag=True,
    ),
    # -- the model
    NoOpOption(
        ("--trust-remote-code",), ("false",), "code that comes with a model is never run; leave it out", flag=True
    ),
    NoOpOption(("--tokenizer",), (), "the tokenizer is read from the model's folder; put it there"),
    NoOpOption(("--tokenizer-mode",), ("auto",), "the model's files determine the tokenizer; give auto"),
    NoOpOption(
        ("--revision", "--tokenizer-revision"), ("main",), "give the folder of the snapshot as the model instead"
    ),
    NoOpOption(
        ("--download-dir",), (), "nothing is downloaded; set HF_HUB_CACHE to the folder of downloaded models instead"
    ),
    NoOpOption(("--config-format",), ("auto", "hf"), "models are read from their config.json; give auto"),
    NoOpOption(
        ("--generation-config",), ("auto",),
        "the sampling defaults are read from generation_config.json; give auto, or state all sampling options",
    ),
    # -- the server
    RenamedOption(("--max-logprobs",), "--max-top-logprobs"),
    RenamedOption(("--disable-uvicorn-access-log",), "--no-access-log", flag=True),
    NoOpOption(
        ("--enable-auto-tool-choice",), ("true",),
        "a model whose chat template supports tools can always call them; requests can send tool_choice none instead",
        flag=True, marks="--port",
    ),
    NoOpOption(
        ("--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs"), (),
        "the server speaks plain HTTP; put a reverse proxy that terminates TLS in front", marks="--port",
    ),
    NoOpOption(
        ("--enable-log-requests",), ("false",), "no text of a request is ever logged; leave it out",
        flag=True, marks="--port",
    ),
    NoOpOption(
        ("--disable-log-requests",), ("true",), "no text of a request is ever logged; leave it out",
        flag=True, marks="--port",
    ),
    NoOpOption(("--api-server-count", "-asc"), ("1",), "one process serves the API; give 1", marks="--port"),
)  # fmt: skip


class Parameter(Protocol):
    """The attributes of a Click option or argument that this module reads."""

    name: str | None
    opts: list[str]
    secondary_opts: list[str]
    param_type_name: str


def is_flag(param: Parameter) -> bool:
    """Return whether a parameter is an option without a value."""
    return bool(getattr(param, "is_flag", False))


def long_name(param: Parameter) -> str:
    """Return the first long name of an option, or the name of an argument."""
    return next((name for name in param.opts if name.startswith("--")), param.opts[0])


@dataclass(frozen=True, slots=True)
class OptionName:
    """The meaning of an option name that the user gave."""

    name: str
    param: Parameter | None
    """The Ridgeline parameter that the name stands for; None for an option without effect."""
    alias: Alias | None = None
    """The alias that the name matched; None for a canonical name."""
    flag: bool = False
    """Whether the option has no value."""
    negated: bool = False
    """Whether the name is the negative form of a flag."""

    def mean(self, value: str | bool) -> tuple[Parameter, str | bool] | None:
        """Return the canonical parameter and value for a user's value, or None if the option has no effect.

        A flag's value is a bool.

        Raises:
            ValueError: If the value is refused.
        """
        if isinstance(value, bool):
            value = value is not self.negated
        if isinstance(self.alias, NoOpOption):
            self.alias.check(self.name, value)
            return None
        assert self.param is not None
        others = self.alias.values if self.alias is not None else None
        if others is not None and isinstance(value, str) and value in others:
            return (self.param, others[value]) if others[value] else None
        return self.param, value


class OptionNames:
    """The names by which the options of one command are known."""

    def __init__(self, params: Sequence[Parameter]) -> None:
        self.by_name: dict[str, Parameter] = {}
        for param in params:
            names = [*param.opts, *param.secondary_opts] if param.param_type_name == "option" else [str(param.name)]
            self.by_name |= dict.fromkeys(names, param)
        self.arguments = sum(param.param_type_name == "argument" for param in params)
        self.aliases = [alias for alias in ALIASES if alias.applies(self.by_name)]

    def names(self, *, refused: bool = False) -> list[str]:
        """Return all long option names and aliases.

        Args:
            refused: Whether to include the aliases that have no effect or are refused.
        """
        kinds = RenamedOption | NoOpOption if refused else RenamedOption
        others = [name for alias in self.aliases if isinstance(alias, kinds) for name in alias.names]
        return [name for name in [*self.by_name, "--help", *others] if name.startswith("--")]

    def find(self, name: str) -> OptionName | None:
        """Return the meaning of an option name, or None if it is unknown."""
        param = self.by_name.get(name)
        if param is not None:
            return OptionName(name, param, None, is_flag(param), name in param.secondary_opts)
        positive = "--" + name.removeprefix("--no-")
        for alias in self.aliases:
            stated = name in alias.names
            if not stated and not (alias.flag and positive in alias.names):
                continue
            if isinstance(alias, NoOpOption):
                return OptionName(name, None, alias, alias.flag, not stated)
            param = self.by_name[alias.option]
            return OptionName(name, param, alias, alias.flag, stated is (alias.option in param.secondary_opts))
        return None

    def nearest(self, name: str) -> ValueError:
        """Return (do not raise) the error for an unknown option, with similar names."""
        names = {known.strip("-"): known for known in self.names(refused=True) if known not in (name, *_NEVER_MEANT)}
        if name == "--traceback":
            return ValueError(f"{name} must come first: ridgeline {name} COMMAND ...")
        near = [names[bare] for bare in get_close_matches(name.strip("-"), names, 3, _NEAR)]
        meant = f"; did you mean {' or '.join(near)}?" if near else ""
        return ValueError(f"unknown option {name}{meant}")


def normalise_args(arguments: Sequence[str], spellings: OptionNames) -> list[str]:
    """Return a command's arguments with canonical option names, and with the model first if it was an option.

    Values are unchanged unless an alias translates them, and everything after `--` is unchanged. If the command already
    has all its arguments, further words after the value of a repeatable option count as values of that option
    (`--served-model-name a b`).

    Args:
        arguments: The arguments as the user gave them.
        spellings: The option names of the command.

    Raises:
        ValueError: If an option is unknown, refused, or lacks its value.
    """
    given, first, out = iter(arguments), list[str](), list[str]()
    words, repeated = 0, list[str]()
    for argument in given:
        if argument == "--":
            out += [argument, *given]
        elif argument.startswith("-") and len(argument) > 1:
            option = _option(argument, given, spellings)
            repeated = [name for name in option[:1] if getattr(spellings.by_name.get(name), "multiple", False)]
            if option[:1] == [MODEL]:
                first, words = option[1:], words + (not first)
            else:
                out += option
        elif repeated and words >= spellings.arguments:
            out += [*repeated, argument]
        else:
            out.append(argument)
            words += 1
    return first + out


def _option(argument: str, rest: Iterator[str], spellings: OptionNames) -> list[str]:
    """Return one option in canonical form with its value, which may be the next argument."""
    stated, equals, value = argument.partition("=")
    name = stated.replace("_", "-") if stated.startswith("--") else stated
    option = spellings.find(name)
    if option is None:
        if name.startswith("--") and name != "--help":
            raise spellings.nearest(name)
        return [argument]  # one or several short options, which Click parses
    if option.flag:
        if equals:
            raise ValueError(f"{name} takes no value; leave out {value!r}")
        return [name] if option.alias is None else _written(option.mean(True))
    following = value if equals else next(rest, None)
    if following is None:
        raise ValueError(f"{name} needs a value; write it after the option")
    if option.alias is None:
        return [name + equals + value] if equals else [name, following]
    return _written(option.mean(following))


def _written(meant: tuple[Parameter, str | bool] | None) -> list[str]:
    """Return an option and its value as arguments; empty if the option has no effect."""
    if meant is None:
        return []
    param, value = meant
    if isinstance(value, str):
        return [param.opts[0], value]
    return (param.opts if value else param.secondary_opts)[:1]
