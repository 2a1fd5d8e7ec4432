"""Options as vLLM spells them: what each means here, or why it is refused. Nothing is accepted and ignored: an option
that cannot act is taken only with the values that ask for what is so anyway.

A name with underscores is one with hyphens, a flag `--name` has its `--no-name`. The first row that applies to a
command counts.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Protocol

_NEAR = 0.75  # of the letters in common: what is less alike was not meant
_NEVER_MEANT = ("--insecure",)  # nobody should give up safety for a slip of the hand
MODEL = "model"
"""The argument of that name, for people who write it as an option."""


@dataclass(frozen=True, slots=True)
class RenamedOption:
    """An option of ours under another name. values: those of its values that are ours under another name; the value
    "" leaves the option out.
    """

    names: tuple[str, ...]
    option: str
    flag: bool = False
    values: Mapping[str, str] | None = None

    def applies(self, options: Collection[str]) -> bool:
        """Whether a command with these options (and arguments) has it."""
        return self.option in options


@dataclass(frozen=True, slots=True)
class NoOpOption:
    """An option that changes nothing with the values that ask for what is so anyway, and is refused with all others.

    why: what is so, and what to do instead. marks: it is for commands that have this option, too.
    """

    names: tuple[str, ...]
    values: tuple[str, ...]
    why: str
    flag: bool = False
    marks: str = "--kv-memory"

    def applies(self, options: Collection[str]) -> bool:
        """Whether it is an option for a command with these options."""
        return self.marks in options

    def check(self, name: str, value: str | bool) -> None:
        """Raises ValueError for a value that asks for something else."""
        if str(value).lower() not in self.values:
            raise ValueError(f"{name}{'' if self.flag else f' {value}'} is refused: {self.why}")


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
        "every prompt is computed, whatever came before it; leave it out", flag=True,
    ),
    RenamedOption(("--enable-cfg-parallel",), "--cfg-parallel", flag=True),
    NoOpOption(
        ("--cfg-parallel-size",), ("1",), "--cfg-parallel runs the passes of guidance on two processes; give 1",
        marks="--cfg-parallel",
    ),
    NoOpOption(
        ("--cfg-parallel",), ("false",),
        "on several cards plan has it as a way to divide a request: give --devices 2 and --section cards",
        flag=True, marks="--eager",
    ),
    NoOpOption(
        ("--step-cache",), ("0",),
        "which passes skip is known when they have; plan prices whole ones, the most that it takes: leave it out",
        marks="--eager",
    ),
    RenamedOption(("--tensor-parallel-size", "-tp", "--tp", "--gpus", "--num-gpus"), "--devices"),
    RenamedOption(("--tensor-parallel-size", "-tp", "--tp"), "--tensor-parallel"),
    NoOpOption(("--pipeline-parallel-size", "-pp"), ("1",), "layers are not divided into a pipeline; give 1"),
    RenamedOption(("--data-parallel-size", "-dp"), "--replicas"),
    NoOpOption(("--data-parallel-size", "-dp"), ("1",), "one process has one engine; give 1, or serve with --replicas"),
    NoOpOption(
        ("--data-parallel-size", "-dp"), ("1",),
        "--users and --rate give replicas, --enable-dp-attention divides requests among --devices; give 1",
        marks="--compare",
    ),
    NoOpOption(
        ("--enable-expert-parallel",), ("false",),
        "each expert is priced as divided over all --devices; for requests divided among them too give "
        "--enable-dp-attention; leave it out",
        flag=True, marks="--memory-utilization",
    ),
    NoOpOption(
        ("--quantization", "-q"), (),
        "weights run as the checkpoint stores them, or in another format while "
        "it is loaded (--weights int8); leave it out",
    ),
    NoOpOption(("--load-format",), ("auto", "safetensors"), "a GGUF file is one by what it holds; give auto"),
    NoOpOption(
        ("--enable-chunked-prefill",), ("true",),
        "a prompt longer than a step's budget always runs in chunks; raise --max-batch-tokens instead", flag=True,
    ),
    NoOpOption(("--swap-space",), ("0",), "a preempted request is computed again, nothing is swapped out; give 0"),
    NoOpOption(("--cpu-offload-gb",), ("0",), "weights are in memory once and are not moved; give 0"),
    RenamedOption(("--num-speculative-tokens",), "--speculate-tokens"),
    NoOpOption(
        ("--speculative-config", "-sc"), (),
        "of what a speech model writes nothing is guessed; leave it out", marks="--task",
    ),
    NoOpOption(
        ("--async-scheduling",), ("false",), "a step is planned when the last one is done; leave it out", flag=True
    ),
    # -- the model
    NoOpOption(("--trust-remote-code",), ("false",), "no code that comes with a model is ever run", flag=True),
    NoOpOption(("--tokenizer",), (), "the tokenizer is the one in the model's folder; put it there"),
    NoOpOption(("--tokenizer-mode",), ("auto",), "the tokenizer is what the model's files say; give auto"),
    NoOpOption(
        ("--revision", "--tokenizer-revision"), ("main",), "give the folder of the snapshot as the model instead"
    ),
    NoOpOption(("--download-dir",), (), "nothing is downloaded; HF_HUB_CACHE says where models are"),
    NoOpOption(("--config-format",), ("auto", "hf"), "a model is described by its config.json; give auto"),
    NoOpOption(
        ("--generation-config",), ("auto",), "sampling is what generation_config.json says; give auto, or state all"
    ),
    # -- the server
    RenamedOption(("--max-logprobs",), "--max-top-logprobs"),
    RenamedOption(("--disable-uvicorn-access-log",), "--no-access-log", flag=True),
    NoOpOption(
        ("--enable-auto-tool-choice",), ("true",),
        "a model whose template has tools may always call them; send tool_choice none instead",
        flag=True, marks="--port",
    ),
    NoOpOption(
        ("--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs"), (),
        "the server speaks plain HTTP; put a proxy that ends TLS in front", marks="--port",
    ),
    NoOpOption(
        ("--enable-log-requests",), ("false",), "no text of a request is ever logged; leave it out",
        flag=True, marks="--port",
    ),
    NoOpOption(
        ("--disable-log-requests",), ("true",), "no text of a request is ever logged; leave it out",
        flag=True, marks="--port",
    ),
    NoOpOption(("--api-server-count", "-asc"), ("1",), "one process answers; give 1", marks="--port"),
)  # fmt: skip


class Parameter(Protocol):
    """What is read of an option or an argument of the command line's library."""

    name: str | None
    opts: list[str]
    secondary_opts: list[str]
    param_type_name: str


def is_flag(param: Parameter) -> bool:
    """Whether it is an option without a value."""
    return bool(getattr(param, "is_flag", False))


def long_name(param: Parameter) -> str:
    """The first long name of an option; of an argument, its own."""
    return next((name for name in param.opts if name.startswith("--")), param.opts[0])


@dataclass(frozen=True, slots=True)
class OptionName:
    """What a name stands for that somebody gave to one of a command's options.

    param: our own, None for one that cannot act. alias: the row of the table, None where the name is our own. flag: it
    has no value. negated: as a flag it says no to `param`.
    """

    name: str
    param: Parameter | None
    alias: Alias | None = None
    flag: bool = False
    negated: bool = False

    def mean(self, value: str | bool) -> tuple[Parameter, str | bool] | None:
        """Our own parameter and the value for it, that of a flag as a truth; None where there is nothing to be said.
        Raises ValueError for what is refused.
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
    """The names by which one command's options go."""

    def __init__(self, params: Sequence[Parameter]) -> None:
        self.by_name: dict[str, Parameter] = {}
        for param in params:
            names = [*param.opts, *param.secondary_opts] if param.param_type_name == "option" else [str(param.name)]
            self.by_name |= dict.fromkeys(names, param)
        self.arguments = sum(param.param_type_name == "argument" for param in params)
        self.aliases = [alias for alias in ALIASES if alias.applies(self.by_name)]

    def names(self, *, refused: bool = False) -> list[str]:
        """All long options with their aliases; refused: those too that are taken only for what is so anyway."""
        kinds = RenamedOption | NoOpOption if refused else RenamedOption
        others = [name for alias in self.aliases if isinstance(alias, kinds) for name in alias.names]
        return [name for name in [*self.by_name, "--help", *others] if name.startswith("--")]

    def find(self, name: str) -> OptionName | None:
        """What a name stands for; None for one that nobody knows."""
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
        """The error for an option that is not there."""
        names = {known.strip("-"): known for known in self.names(refused=True) if known not in (name, *_NEVER_MEANT)}
        near = [names[bare] for bare in get_close_matches(name.strip("-"), names, 3, _NEAR)]
        meant = f"; did you mean {' or '.join(near)}?" if near else ""
        return ValueError(f"there is no option {name}{meant}")


def normalise_args(arguments: Sequence[str], spellings: OptionNames) -> list[str]:
    """A command's arguments with every option under our own name, and the model in front where it was given as an
    option. Values are left alone, and so is what comes after `--`. Where the command has all of its arguments already,
    further words after the value of an option that may be repeated are values of it too (`--served-model-name a b`).

    Raises ValueError for an option that is refused, or that is not there.
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
    """One option with its value, which may be the next argument."""
    stated, equals, value = argument.partition("=")
    name = stated.replace("_", "-") if stated.startswith("--") else stated
    option = spellings.find(name)
    if option is None:
        if name.startswith("--") and name != "--help":
            raise spellings.nearest(name)
        return [argument]  # a short option, or several in one: as the library reads them
    if option.flag:
        if equals:
            raise ValueError(f"{name} takes no value; leave {value!r} out")
        return [name] if option.alias is None else _written(option.mean(True))
    following = value if equals else next(rest, None)
    if following is None:
        raise ValueError(f"{name} wants a value")
    if option.alias is None:
        return [name + equals + value] if equals else [name, following]
    return _written(option.mean(following))


def _written(meant: tuple[Parameter, str | bool] | None) -> list[str]:
    """An option and its value as arguments; none where there is nothing to be said."""
    if meant is None:
        return []
    param, value = meant
    if isinstance(value, str):
        return [param.opts[0], value]
    return (param.opts if value else param.secondary_opts)[:1]
