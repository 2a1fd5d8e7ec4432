"""Figures of README.md, next to the pages and the code that they come from."""

import ast
import re
import statistics
from pathlib import Path

import pytest

from ridgeline.price.devices import catalogue_devices
from syntax import text_lines

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SENTENCES = " ".join(README.split())
SECTION = "### On AVX-512 BF16, for which the goals are set"
WORKLOADS = {
    "1 with a prompt of 128 tokens": "single",
    "16 with prompts of 128": "batch16",
    "1 with a prompt of 2,048": "long",
    "16, sampled with top-p 0.95": "sampled",
    "64 of mixed lengths": "mixed",
}


def cells(line: str) -> list[str]:
    """Return the cells of a row of a Markdown table."""
    return [cell.strip() for cell in line.strip("|").split("|")]


def medians() -> dict[tuple[str, str], list[str]]:
    """Return the medians of ours, vLLM and llama.cpp in benchmarks/cpu.md, and the ratio to the best, by workload and
    figure: those of the most rounds."""
    page = (ROOT / "benchmarks" / "cpu.md").read_text(encoding="utf-8")
    section = page[page.index(SECTION) :]
    found: dict[tuple[str, str], list[str]] = {}
    workload = ""
    for line in section[: section.index("\nNot reached:")].splitlines():
        if line.startswith("| ") and not line.startswith(("| ---", "| workload")):
            name, figure, *rest = cells(line)
            workload = name.partition(",")[0] or workload
            found.setdefault((workload, figure), [cell.partition(" ")[0] for cell in rest[:4]])
    return found


def test_the_table_has_the_figures_of_the_benchmark() -> None:
    """Losses included: the best of a row is the bold one."""
    measured, seen, requests = medians(), 0, ""
    for line in README.splitlines():
        row = cells(line)
        if line.startswith("| ") and len(row) == 6 and row[1] in ("decode", "prefill", "output"):
            requests = row[0] or requests
            ours, vllm, llama, ratio = measured[WORKLOADS[requests], row[1]]
            assert [cell.strip("*") for cell in row[2:]] == [ours, vllm, llama, ratio]
            values = [float(cell) for cell in (ours, vllm, llama) if cell]
            bold = [float(cell.strip("*")) for cell in row[2:] if cell.startswith("**")]
            assert bold == ([max(values)] if values.count(max(values)) == 1 else [])
            seen += 1
    assert seen >= 7
    assert f"tokens in bf16 for 16 requests {measured['batch16', 'decode'][3]} times as fast as vLLM" in SENTENCES
    assert measured["single", "decode"][2] > measured["single", "decode"][1], "llama.cpp is the best peer"
    assert f"for one {measured['single', 'decode'][3]} times as fast as llama.cpp" in SENTENCES


def test_the_caption_has_the_figures_of_the_image() -> None:
    """The first two bars of each step: its predicted and its measured time."""
    drawn = (ROOT / "docs" / "first_screen.svg").read_text(encoding="utf-8")
    assert "SmolLM2-135M" in drawn
    first, later = (
        [float(value) for value in re.findall(r">([\d.]+) ms<", part)[:2]] for part in drawn.split("Each further token")
    )
    says = f"predicted the first token in {first[0]:.0f} ms and each further one in {later[0]:.1f} ms."
    assert says in SENTENCES
    short = [100 * (1 - predicted / measured) for predicted, measured in (first, later)]
    says = (
        f"measured {first[1]:.0f} and {later[1]:.1f} ms: the prediction was {short[0]:.0f} and {short[1]:.0f} % short"
    )
    assert says in SENTENCES


def test_it_counts_the_devices_of_the_catalogue() -> None:
    assert f"from a config.json, for {len(catalogue_devices())} devices:" in SENTENCES


def test_the_figures_of_the_gpu_are_those_of_its_page() -> None:
    page = (ROOT / "benchmarks" / "gpu.md").read_text(encoding="utf-8")
    page = page[: page.index("\n## On an H200")]
    within = re.search(r"Predicted within 10 %: (\d+ of \d+)\.", page)
    row = next(line for line in page.splitlines() if line.startswith("|decode 1 x 1 of 512|"))
    assert within is not None
    assert f"{within[1]} steps on an H100 and " in SENTENCES
    assert f"{float(cells(row)[6].strip('%')):.0f} % of the measured bandwidth" in SENTENCES


def test_the_figure_of_the_cpu_is_that_of_its_page() -> None:
    page = (ROOT / "benchmarks" / "local_accuracy.md").read_text(encoding="utf-8")
    within = re.search(r"(\d+ of \d+) rows within 10%", page)
    assert within is not None
    assert f"H100 and {within[1]} on a CPU took within 10 % of the predicted time" in SENTENCES


@pytest.fixture(scope="module")
def trees() -> dict[Path, ast.Module]:
    """The syntax trees of the package's files."""
    files = (ROOT / "src" / "ridgeline").rglob("*.py")
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in files}


def test_the_median_function_is_as_short_as_it_says(trees: dict[Path, ast.Module]) -> None:
    lengths = [
        len(set(range(node.lineno, (node.end_lineno or node.lineno) + 1)) - docstrings)
        for tree in trees.values()
        for docstrings in [text_lines(tree)]
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    median = statistics.median(lengths)
    assert f"The median function has {median:.0f} lines without its docstring." in SENTENCES


def test_the_scheduler_imports_what_it_says(trees: dict[Path, ast.Module]) -> None:
    assert "The scheduler imports neither PyTorch nor a model." in SENTENCES
    engine = ROOT / "src" / "ridgeline" / "engine"
    names = {
        name
        for node in ast.walk(trees[engine / "scheduler.py"])
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names])
    }
    assert not [name for name in names if name.startswith(("torch", "ridgeline.core.models", "ridgeline.core.ops"))]


def test_it_names_no_more_architectures_than_there_are() -> None:
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    page = page[page.index("\n## Text generation") : page.index("\n## Autoencoders")]
    page = re.sub(r"<!-- encoders of transformers: begin -->.*?end -->", "", page, flags=re.DOTALL)  # no families
    rows = [line for line in page.splitlines() if re.match(r"\| \w+ \|", line) and "architecture |" not in line]
    stated = re.search(r"More than (\d+) \[architectures\]", SENTENCES)
    assert stated is not None
    assert int(stated[1]) < len(rows) < int(stated[1]) + 10


def test_it_can_be_read_in_a_few_minutes() -> None:
    text = re.sub(r"```mermaid.*?```|<[^>]*>|\]\([^)]*\)", "", README, flags=re.DOTALL)
    assert 700 <= sum(bool(re.search(r"\w", word)) for word in text.split()) <= 1000
