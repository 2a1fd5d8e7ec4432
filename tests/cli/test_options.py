"""Options under the names that people bring, from flags, from a file and by default."""

import json
import subprocess
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import typer.main

from cli.running import OK, USAGE, Run, assert_one_line
from cli.test_cli import COMMANDS as COMMAND_LIST
from models.configs import CONFIGS
from ridgeline.cli.aliases import ALIASES, MODEL, Alias, NoOpOption, OptionNames, RenamedOption, normalise_args
from ridgeline.cli.config import SECRETS
from ridgeline.cli.engine_flags import EngineFlags
from ridgeline.cli.main import COMMANDS, build_app
from ridgeline.cli.media_flags import MediaRunFlags
from support.checkpoints import write_folder

TABLED = [(alias, name) for alias in ALIASES for name in alias.names]


@pytest.fixture(scope="module")
def commands() -> dict[str, OptionNames]:
    """The names of each command's options; those of a group are not asked for here."""
    group: Any = typer.main.get_command(build_app())
    return {name: OptionNames(each.params) for name, each in group.commands.items() if not hasattr(each, "commands")}


def having(commands: dict[str, OptionNames], alias: Alias) -> list[OptionNames]:
    """The commands to which an alias applies; at least one."""
    found = [spellings for spellings in commands.values() if alias in spellings.aliases]
    assert found, f"no command has a use for {alias.names}"
    return found


def written(alias: Alias, name: str, value: str) -> list[str]:
    return [name] if alias.flag else [name, value]


# -- the table ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("alias", "name"), TABLED, ids=lambda part: part if isinstance(part, str) else "")
def test_every_alias_acts_or_is_refused(commands: dict[str, OptionNames], alias: Alias, name: str) -> None:
    """It becomes an option that the command has, with its value; or it asks for what is so anyway; or it is refused in
    a line that says why."""
    for spellings in having(commands, alias):
        found = spellings.find(name)
        assert found is not None
        if found.alias is not alias:
            continue  # a row before it counts
        if isinstance(alias, RenamedOption):
            became = normalise_args(written(alias, name, "some value"), spellings)
            if alias.option == MODEL:
                assert became == ["some value"]
            else:
                assert became == written(alias, alias.option, "some value")
                assert alias.option in spellings.by_name
        else:
            check_same(alias, name, spellings)


def check_same(alias: NoOpOption, name: str, spellings: OptionNames) -> None:
    if alias.flag:
        accepted = [name if value == "true" else f"--no-{name[2:]}" for value in alias.values]
        refused = f"--no-{name[2:]}" if "true" in alias.values else name
        assert len(accepted) == 1, "a flag says yes or no"
    else:
        accepted, refused = [f"{name}={value}" for value in alias.values], f"{name}=17"
    for argument in accepted:
        assert normalise_args(["x", argument, "y"], spellings) == ["x", "y"]
    with pytest.raises(ValueError, match=f"{refused.replace('=', ' ')} is not supported: ") as error:
        normalise_args([refused], spellings)
    assert alias.why in str(error.value)
    assert "\n" not in str(error.value)


def test_no_alias_hides_an_option_of_ours(commands: dict[str, OptionNames]) -> None:
    for spellings in commands.values():
        for alias in spellings.aliases:
            assert set(alias.names).isdisjoint(spellings.by_name) or alias.names == ("--device",), alias.names


@pytest.mark.parametrize(
    ("arguments", "means"),
    [
        (["--max_model_len", "32k"], ["--context", "32k"]),
        (["--max-model-len=auto"], []),
        (["--max_num_batched_tokens=4k"], ["--max-batch-tokens", "4k"]),
        (["--max_batch_tokens=4k"], ["--max-batch-tokens=4k"]),
        (["--enable_prefix_caching"], ["--prefix-cache"]),
        (["--no-enable-prefix-caching"], ["--no-prefix-cache"]),
        (["hello", "--model", "tales"], ["tales", "hello"]),
        (["tales", "--stop", "--max_model_len", "hi"], ["tales", "--stop", "--max_model_len", "hi"]),
        (["tales", "--", "--max_model_len"], ["tales", "--", "--max_model_len"]),
        (["tales", "-", "-n", "2"], ["tales", "-", "-n", "2"]),
        (["-tp", "1"], ["--tensor-parallel", "1"]),
        (["-pp", "1", "-pp=1"], []),
        (
            ["tales", "hi", "--stop", "a", "b", "--seed", "1"],
            ["tales", "hi", "--stop", "a", "--stop", "b", "--seed", "1"],
        ),
        (["--stop", "a", "tales", "hi"], ["--stop", "a", "tales", "hi"]),
    ],
)
def test_spellings(commands: dict[str, OptionNames], arguments: Sequence[str], means: Sequence[str]) -> None:
    """Underscores in names and not in values; `=`; what comes after `--`; the model in front."""
    assert normalise_args(arguments, commands["run"]) == means


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--temprature", "1"], "unknown option --temprature; did you mean --temperature"),
        (["--max-model-length", "1"], "unknown option --max-model-length; did you mean --max-model-len"),
        (["--hlp"], "did you mean --help"),
        (["--frobnicate"], "unknown option --frobnicate (see ridgeline run --help)"),
        (["--seed", "abc"], "--seed is 'abc'; give a whole number (see"),
        (["--top-p", "x"], "--top-p is 'x'; give a number (see"),
        (["--qqqqqq"], "unknown option --qqqqqq (see ridgeline run --help)"),
        (["--trust-remote-code"], "--trust-remote-code is not supported: code that comes with a model is never run"),
        (["--trust_remote_code=true"], "--trust-remote-code takes no value"),
        (["--max-model-len"], "--max-model-len needs a value"),
        (["--seed"], "ridgeline: --seed needs a value; write it after the option (see ridgeline run --help)"),
        (["-n"], "-n needs a value"),
        (["--raw=1"], "--raw takes no value; leave out '1'"),
        (["--max-model-len", ""], "--context is ''"),
        (["-tp", "2"], "3 KV heads do not divide over 2 devices; give --tensor-parallel 1"),
        (["-pp", "2"], "-pp 2 is not supported: layers are not divided into a pipeline"),
        (["--dtype", "half"], "--dtype is 'half'; tales runs in bfloat16, and in no other dtype: give auto"),
        (["--kv-cache-dtype", "nvfp4"], "--kv is 'nvfp4', which can only be priced (ridgeline plan --kv)"),
        (["--kv", "fp8_e5m2"], "--kv is 'fp8_e5m2'; tales can store keys and values in bf16, fp8, int8"),
        (["--max-model-len", "1M"], "--context is 1,048,576, but the model's context is 512: give at most that"),
        (["--max-model-len", "x"], "--context is 'x'; write a whole number of tokens"),
        (["--gpu-memory-utilization", "1.5"], "ridgeline: --memory-share is 1.5: give a number above 0 and at most 1"),
        (["--max-num-seqs", "0"], "limit of requests is 0"),
    ],
)
def test_what_is_refused(ridgeline: Run, arguments: list[str], says: str) -> None:
    assert_one_line(ridgeline("run", "tales", "hi", *arguments), USAGE, says)


@pytest.mark.parametrize("prefix", ["", "torch."])
@pytest.mark.parametrize(
    ("stored", "names"),
    [
        ("float16", {"half", "float16", "fp16"}),
        ("bfloat16", {"bfloat16", "bf16"}),
        ("float32", {"float", "float32", "fp32"}),
    ],
)
def test_every_name_of_a_dtype(stored: str, names: set[str], prefix: str, tmp_path: Path) -> None:
    """Expect those of vLLM, torch and our own for the model's dtype, and a refusal of all others."""
    write_folder(tmp_path, CONFIGS["llama"] | {"torch_dtype": stored})
    EngineFlags(dtype="auto").settings(str(tmp_path))
    for name in ("half", "float16", "fp16", "bfloat16", "bf16", "float", "float32", "fp32", "double", "int8"):
        flags = EngineFlags(dtype=prefix + name)
        if name in names:
            flags.settings(str(tmp_path))
        else:
            with pytest.raises(ValueError, match=f"--dtype is '{prefix}{name}'; .* runs in {stored}, and in no other"):
                flags.settings(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(None, None), ("auto", None), ("float", torch.float32), ("float32", torch.float32), ("bfloat16", torch.bfloat16)],
)
def test_a_denoisers_dtype_by_any_name(name: str | None, dtype: torch.dtype | None) -> None:
    assert MediaRunFlags(dtype=name).denoiser_dtype == dtype


def test_what_is_not_alike_was_not_meant(ridgeline: Run) -> None:
    """And --insecure is offered to nobody."""
    for name in ("frobnicate", "nonsense", "insecur"):
        assert_one_line(ridgeline("serve", "tales", f"--{name}"), USAGE, f"unknown option --{name} (see ")


def test_aliases_act(ridgeline: Run) -> None:
    """A model's own number format by any of its names; a context and a share of memory that reach the engine."""
    ended = ridgeline(
        "run", "--model", "tales", "Once upon a time", "--dtype", "bfloat16", "--kv_cache_dtype", "bf16",
        "--max-model-len", "20", "--max-num-seqs", "3", "--gpu-memory-utilization", "0.01", "--block-size", "4",
        "--ignore-eos",
    )  # fmt: skip
    assert ended.code == OK, ended.err
    assert "KV cache: 60 tokens" in ended.err
    assert "maximum concurrency for 20 tokens: 3.00x" in ended.err
    assert "decode       14 tokens" in ended.err, "5 of the prompt, the first with it, and 14 more are 20"


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Options at the top and in the command's own table, under names of ours and of others."""
    path = tmp_path / "options.toml"
    path.write_text(
        'model = "tales"\nseed = 3\ntemperature = 1\ntensor-parallel-size = 1\n'
        '[run]\ntemperature = 0.5\nmax_model_len = 64\nenable-prefix-caching = false\nstop = ["x", "y"]\n'
        "trust-remote-code = false\nenforce-eager = true\n"
        '[trace]\nlens = true\nnonsense = "of another command"\n'
    )
    return path


def printed(out: str) -> dict[str, tuple[Any, str]]:
    """What --print-config said: key, value, and where from."""
    values = tomllib.loads(out)
    lines = [line for line in out.splitlines() if not line.startswith("#")]
    return {line.partition(" = ")[0]: (values[line.partition(" = ")[0]], line.rpartition("# ")[2]) for line in lines}


def test_flag_before_file_before_default(ridgeline: Run, config: Path) -> None:
    """A flag counts before the command's table, that before the top of the file, that before the default; a list given
    as flags replaces the file's."""
    told = ridgeline("run", "tales", "hi", "--config", config, "--seed", 9, "--print-config")
    assert told.code == OK, told.err
    values = printed(told.out)
    assert values["seed"] == (9, "command line")
    assert values["temperature"] == (0.5, "config")
    assert values["context"] == ("64", "config")
    assert values["prefix-cache"] == (False, "config")
    assert values["stop"] == (["x", "y"], "config")
    assert values["n"] == (1, "default")
    assert values["model"] == ("tales", "command line")
    assert "# kv-memory is not set\n" in told.out
    again = ridgeline("run", "tales", "hi", f"--config={config}", "--stop", "z", "--prefix-cache", "--print-config")
    values = printed(again.out)
    assert values["stop"] == (["z"], "command line")
    assert values["prefix-cache"] == (True, "command line")


def test_what_is_printed_is_a_file(ridgeline: Run, config: Path, tmp_path: Path) -> None:
    told = ridgeline("run", "tales", 'say "hi"\n', "--config", config, "--print-config")
    path = tmp_path / "again.toml"
    path.write_text(told.out)
    again = ridgeline("run", "--config", path, "--print-config")
    assert {key: value for key, (value, _) in printed(again.out).items()} == {
        key: value for key, (value, _) in printed(told.out).items()
    }
    assert {source for _, source in printed(again.out).values()} == {"config"}


def _each_command(group: Any, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _each_command(command, (*before, name))
        else:
            yield (*before, name), command


EVERY = dict(_each_command(typer.main.get_command(build_app())))
VALUES = {"endpoint": "chat", "arrival": "gamma", "shell": "bash", "stop": "\U0001f600\x7f", "burstiness": "inf"}
"""For options that do not take a 1, or that are to have an awkward one."""


def stated(command: Any) -> list[str]:
    """Every option of a command with a value, flags as they are not by default; no secret, and no --config."""
    words: list[str] = []
    for param in command.params:
        value = VALUES.get(param.name, "1")
        if param.name in (*SECRETS, "config", "print_config"):
            continue
        if param.param_type_name == "argument":
            words.append(VALUES.get(param.name, "tales"))
        elif param.is_flag:
            words.append(param.secondary_opts[0] if param.default and param.secondary_opts else param.opts[0])
        else:
            words += [param.opts[0], value]
    return words


@pytest.mark.parametrize("name", EVERY, ids=" ".join)
def test_what_any_command_prints_means_the_same_when_read(ridgeline: Run, tmp_path: Path, name: Sequence[str]) -> None:
    """Of its defaults, and with every option stated: printing what was printed and read gives the same again."""
    arguments = [VALUES.get(p.name, "tales") for p in EVERY[name].params if p.param_type_name == "argument"]
    for param in EVERY[name].params:
        if param.param_type_name == "option" and param.required:
            arguments += [param.opts[0], "1"]
    path = tmp_path / "again.toml"
    for given in (arguments, stated(EVERY[name])):
        told = ridgeline(*name, *given, "--print-config")
        assert told.code == OK, told.err
        path.write_text(told.out, encoding="utf-8")
        again = ridgeline(*name, "--config", path, "--print-config")
        assert again.code == OK, again.err
        assert tomllib.loads(again.out) == tomllib.loads(told.out)


def test_a_key_is_not_printed_and_none_is_invented(ridgeline: Run, tmp_path: Path) -> None:
    """What is printed without a key sets none when it is read: a server that listens for all would take it."""
    path = tmp_path / "again.toml"
    for given, line in (([], "api-key = []  # default"), (["--api-key", "s3cret"], "# api-key is set but not shown")):
        told = ridgeline("serve", "tales", *given, "--print-config")
        assert line in told.out.splitlines()
        assert "s3cret" not in told.out
        path.write_text(told.out)
        assert not tomllib.loads(told.out).get("api-key")
        said = ridgeline("serve", "--config", path, "--host", "0.0.0.0")
        assert_one_line(said, USAGE, "--api-key")
    assert (
        "# api-key is set but not shown\n" in ridgeline("bench", "serve", "u", "--api-key", "s", "--print-config").out
    )


def test_every_option_that_sounds_like_a_secret_is_one() -> None:
    """But the files of keys, whose names may be known."""
    names = {param.name for command in EVERY.values() for param in command.params}
    sounding = {
        name for name in names if any(word in name.split("_") for word in ("key", "keys", "password", "secret"))
    }
    assert sounding - {"api_key_file", "kv_key_file"} == set(SECRETS)


def test_a_file_acts(ridgeline: Run, config: Path, tmp_path: Path) -> None:
    """As the same flags do, also for a command of a group."""
    flags = ("--temperature", 0.5, "--seed", 3, "--context", 64, "--stop", "x", "--stop", "y", "--json")
    told = ridgeline("run", "tales", "Once", *flags).json
    assert ridgeline("run", "tales", "Once", "--config", config, "--json").json["text"] == told["text"]
    config.write_text("[lab.memory]\ncontext = 77\nmodel = 'tales'\n[lab.phases]\nnothing = 1\n")
    ended = ridgeline("lab", "memory", "--config", config, "--print-config")
    assert 'context = "77"  # config\n' in ended.out


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("temprature = 1", "unknown option --temprature; did you mean --temperature"),
        ("[rnu]\nseed = 1", "the table [rnu] is not the name of a command"),
        ("seed = 'x'", "options.toml: seed is 'x'; give a whole number (see"),
        ("temperature = 'hot'", "options.toml: temperature is 'hot'; give a number (see"),
        ("threads = -1", "options.toml: threads is -1; it must be from 1 to"),
        ("max-model-len = 'x'", "options.toml: max-model-len is 'x'; write a whole number of tokens"),
        ("kv-memory = '5'", "options.toml: kv-memory is '5'; write an amount of memory"),
        ("gpu-memory-utilization = 3", "options.toml: gpu-memory-utilization is 3.0: give a number above 0"),
        ("top-p = 2", "options.toml: top-p is 2"),
        ("context = 'x'", "options.toml: context is 'x'; write a whole number of tokens"),
        ("help = true", "options.toml: unknown option --help (see"),
        ("nonsense = 1", "options.toml: unknown option --nonsense (see"),
        ("seed = true", "seed is true; give a string or a number, as for the option --seed"),
        ("seed = [1]", "seed is [1]; give a string or a number, as for the option --seed"),
        ("seed = {a = 1979-05-27}", "give a string or a number, as for the option --seed"),
        ("stop = [true]", "stop is true; give a string or a number, as for the option --stop"),
        ("max-model-len = true", "max-model-len is true; give a string or a number, as for the option --max-model-len"),
        ("config = 'other.toml'", "a config file cannot name another one with config; leave it out"),
        ("raw = 1", "raw is 1; give true or false"),
        ("trust_remote_code = true", "--trust-remote-code is not supported: code"),
        ("pipeline-parallel-size = 8", "--pipeline-parallel-size 8 is not supported: layers are not divided"),
        ("seed = ", "is not valid TOML"),
        (None, "cannot be read: No such file"),
    ],
)
def test_files_that_are_refused(ridgeline: Run, tmp_path: Path, text: str | None, says: str) -> None:
    path = tmp_path / "options.toml"
    if text is not None:
        path.write_text(text)
    assert_one_line(ridgeline("run", "tales", "hi", "--config", path), USAGE, says)


def test_a_value_that_its_command_refuses_names_the_file(ridgeline: Run, tmp_path: Path) -> None:
    """By the key, whatever the setting is called inside. But not where a flag stands over the file's."""
    path = tmp_path / "options.toml"
    path.write_text("max-choices = 0\n")
    assert_one_line(ridgeline("serve", "tales", "--config", path), USAGE, f"{path}: max-choices is 0: give 1 to")
    path.write_text("port = 99999\n")
    assert_one_line(ridgeline("serve", "tales", "--config", path), USAGE, f"{path}: port is 99999: give one from 1")
    ended = ridgeline("serve", "tales", "--config", path, "--port", "99998")
    assert_one_line(ended, USAGE, "ridgeline: --port is 99998")


def test_a_table_may_have_the_name_of_any_command(ridgeline: Run, tmp_path: Path) -> None:
    path = tmp_path / "options.toml"
    path.write_text("".join(f"[{name}]\n" for name in COMMANDS))
    assert ridgeline("env", "--config", path, "--json").code == OK
    assert json.loads(ridgeline("env", "--config", path, "--json").out)


# -- what a shell completes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("ridgeline tok", ["tokenize"]),
        ("ridgeline run tales --max-t", ["--max-tokens"]),
        ("ridgeline run --max-model", ["--max-model-len"]),
        ("ridgeline lab mem", ["memory"]),
        ("ridgeline lab memory --cont", ["--context"]),
        ("ridgeline tokenize run --spec", ["--special"]),
    ],
)
def test_what_bash_completes(ridgeline: Run, line: str, completed: Sequence[str]) -> None:
    """As a real bash does, which is told the words of the line; a word that is an argument changes no command."""
    script = ridgeline("completion", "bash").out
    words = line.split()
    setup = f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _ridgeline; echo ${{COMPREPLY[@]}}"
    said = subprocess.run(["bash", "-c", script + setup], capture_output=True, text=True, check=True)
    assert said.stderr == ""
    assert said.stdout.split() == completed


def test_what_other_shells_complete(ridgeline: Run) -> None:
    """Every option of every command is in them."""
    zsh, fish = ridgeline("completion", "zsh").out, ridgeline("completion", "fish").out
    assert zsh.startswith("#compdef ridgeline\n")
    assert zsh.endswith(ridgeline("completion", "bash").out)
    for line in COMMAND_LIST.read_text(encoding="ascii").splitlines():
        names = [name for name in line.split() if name.startswith("--")]
        assert all(f" -l {name[2:]}\n" in fish and name in zsh for name in names)
    assert "complete -c ridgeline -n '__fish_seen_subcommand_from lab; and __fish_seen_subcommand_from memory'" in fish
    assert_one_line(ridgeline("completion", "csh"), USAGE, "'csh' is not one of 'bash', 'zsh', 'fish'")
