"""Write the command-line flags of another engine's server, as its own argument parser declares them, to a text file.

The tests of `--emit` compare the emitted commands with these lists. A line is a flag with the values that it accepts,
if the engine lists them. The source is read without being executed:

    pip download vllm --no-deps --no-binary vllm        # or the archive of the release
    python tools/peer_flags.py vllm vllm-0.33.0.tar.gz > tests/price/peer_flags/vllm.txt
    python tools/peer_flags.py sglang sglang-0.5.23-*.whl > tests/price/peer_flags/sglang.txt
    python tools/peer_flags.py llama.cpp llama_cpp_python-0.3.36.tar.gz > tests/price/peer_flags/llama.cpp.txt

llama-cpp-python's archive has llama.cpp's source, and its CHANGELOG.md the commit.
"""

import ast
import re
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

Flags = dict[str, list[str]]
_FILES: Mapping[str, str] = {
    "vllm": r"[^/]+/vllm/(engine/arg_utils|entrypoints/common/cli_args|config/(cache|model)"
    r"|model_executor/layers/quantization/__init__)\.py",
    "sglang": r"sglang/srt/(server_args|arg_groups/(choices|fields/\w+))\.py",
    "llama.cpp": r"[^/]+/(vendor/llama\.cpp/common/arg\.cpp|CHANGELOG\.md)",
}
"""A pattern of the files that are read from the archive of each engine."""


def files_in(archive: Path, wanted: str) -> dict[str, str]:
    """Return the text of the files of an archive whose names match a pattern, by their names."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            return {name: packed.read(name).decode() for name in packed.namelist() if re.fullmatch(wanted, name)}
    found = {}
    with tarfile.open(archive) as packed_tar:
        for member in packed_tar:
            if re.fullmatch(wanted, member.name) and (file := packed_tar.extractfile(member)) is not None:
                found[member.name] = file.read().decode()
    return found


def _texts(tree: ast.AST) -> list[str]:
    """Return the strings in a part of a program, in their order."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [str(node.value) for node in sorted(found, key=lambda node: (node.lineno, node.col_offset))]


def _declared(tree: ast.AST) -> Iterator[str]:
    """Yield the flags in the calls of `add_argument` of a Python program."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            for argument in node.args:
                if isinstance(argument, ast.Constant) and str(argument.value).startswith("-"):
                    yield str(argument.value)


def _lists(tree: ast.Module) -> dict[str, list[str]]:
    """Return the strings that the module-level names of a Python program are assigned."""
    return {
        target.id: _texts(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def vllm_flags(files: Mapping[str, str]) -> Flags:
    """Return the flags of `vllm serve`: those that are added one by one, and the fields of the server's dataclass."""
    trees = {name: ast.parse(text) for name, text in files.items()}
    lists = {key: texts for tree in trees.values() for key, texts in _lists(tree).items()}
    flags: Flags = {flag: [] for tree in trees.values() for flag in _declared(tree)}
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name.endswith("FrontendArgs"):
                names = [each.target for each in node.body if isinstance(each, ast.AnnAssign)]
                flags |= {f"--{name.id.replace('_', '-')}": [] for name in names if isinstance(name, ast.Name)}
    for flag, values in (
        ("--kv-cache-dtype", "CacheDType"),
        ("--dtype", "ModelDType"),
        ("--quantization", "QuantizationMethods"),
    ):
        flags[flag] = lists[values]
    return flags


def sglang_flags(files: Mapping[str, str]) -> Flags:
    """Return the flags of SGLang's server: those that are added one by one, and the annotated fields of its groups."""
    trees = {name: ast.parse(text) for name, text in files.items()}
    lists = {key: texts for tree in trees.values() for key, texts in _lists(tree).items()}
    flags: Flags = {flag: [] for tree in trees.values() for flag in _declared(tree)}
    fields = [
        field
        for name, tree in trees.items()
        if "/fields/" in name
        for group in tree.body
        if isinstance(group, ast.ClassDef)
        for field in group.body
        if isinstance(field, ast.AnnAssign) and ast.unparse(field.annotation).startswith("A[")
    ]
    for field in fields:
        calls = [node for node in ast.walk(field.annotation) if isinstance(node, ast.Call)]
        stated = {word.arg: word.value for call in calls for word in call.keywords}
        if "no_cli" in stated:
            continue
        choices = stated.get("choices")
        values = lists.get(choices.id, []) if isinstance(choices, ast.Name) else _texts(choices) if choices else []
        own = _texts(stated["cli_name"]) if "cli_name" in stated else [f"--{ast.unparse(field.target)}"]
        aliases = _texts(stated["aliases"]) if "aliases" in stated else []
        flags |= {name.replace("_", "-"): values for name in (*own, *aliases)}
    return flags


def llama_cpp_flags(files: Mapping[str, str]) -> Flags:
    """Return the flags of llama.cpp's programs, which are in braces at the start of each option."""
    source = next(text for name, text in files.items() if name.endswith("arg.cpp"))
    flags: Flags = {}
    for braces in re.findall(r'\{\s*("-[^{}]*")\s*\}', source):
        flags |= {name: [] for name in re.findall(r'"(-[^"]+)"', braces)}
    types = re.search(r"kv_cache_types = \{(.*?)\}", source, re.DOTALL)
    assert types, "common/arg.cpp lists no KV cache types"
    names = [name.lower() for name in re.findall(r"GGML_TYPE_(\w+)", types[1])]
    modes = re.search(r'"--split-mode"\}, "\{([^}]*)\}"', source)
    assert modes, "common/arg.cpp lists no split modes"
    return flags | {"--cache-type-k": names, "--cache-type-v": names, "--split-mode": modes[1].split(",")}


_READERS: Mapping[str, Callable[[Mapping[str, str]], Flags]] = {
    "vllm": vllm_flags,
    "sglang": sglang_flags,
    "llama.cpp": llama_cpp_flags,
}


def version_of(engine: str, archive: Path, files: Mapping[str, str]) -> str:
    """Return the version of the archive, for llama.cpp with the commit."""
    version = re.search(r"-(\d[\d.]*\d)", archive.name)
    assert version, f"{archive.name} states no version"
    if engine != "llama.cpp":
        return f"{engine} {version[1]}"
    log = next(text for name, text in files.items() if name.endswith("CHANGELOG.md"))
    commit = re.search(r"ggml-org/llama\.cpp@(\w+)", log)
    assert commit, "CHANGELOG.md states no commit of llama.cpp"
    return f"llama.cpp {commit[1]} (in llama-cpp-python {version[1]})"


def main() -> None:
    """Print the list for the engine and the archive of the command line."""
    engine, archive = sys.argv[1], Path(sys.argv[2])
    files = files_in(archive, _FILES[engine])
    print(f"# {version_of(engine, archive, files)}, written by tools/peer_flags.py")
    for flag, values in sorted(_READERS[engine](files).items()):
        print(" ".join((flag, *values)))


if __name__ == "__main__":
    main()
