"""The image at the top of README.md: what `plan` predicts of a model next to what `trace` measures, on this machine.

    ridgeline calibrate
    python docs/first_screen.py MODEL

It is drawn on light and on dark ground. A step is the median one of several traces, because other guests of a machine
change its speed. Let nothing else run meanwhile.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from ridgeline.util.document.svg_parts import document, line, on_dark, words

LIGHT = Path(__file__).with_name("first_screen.svg")
DARK = LIGHT.with_stem("first_screen-dark")
PROMPT = "Why is the sky blue?"
OUTPUT = 128
WIDTH, LEFT, PANEL, BAR, FULL, ROW = 900, 206, 350, 11, 260, 36
PREDICTED, MEASURED, QUIET, INK = "#1f6fb4", "#d1495b", "#666666", "#222222"
WHOLE = "the whole step"
TOP = 100
PARTS = {
    "feed-forward": "feed-forward matrices",
    "attention": "attention matrices",
    "head": "output head",
    "cache": "attention to the KV cache",
    "rest": "norms, embedding, rotary",
    "engine": "between ops, sampler",
}


def main() -> None:
    """Run both commands, and draw their figures on light and on dark ground."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a GGUF file or a folder")
    parser.add_argument("--title", default="SmolLM2-135M-Instruct")
    parser.add_argument("--traces", type=int, default=9, help="how often each step is measured; an odd number")
    given = parser.parse_args()
    traces = [_ridgeline("trace", given.model, PROMPT) for _ in range(given.traces)]
    assert traces[0]["device"]["calibrated"], "run `ridgeline calibrate` first"
    length = len(traces[0]["prompt"]["tokens"])
    plan = _ridgeline("plan", given.model, "--device", "this", "--input", str(length), "--output", str(OUTPUT))
    LIGHT.write_text(_image(given.title, length, plan, traces), encoding="utf-8")
    DARK.write_text(on_dark(LIGHT.read_text(encoding="utf-8")), encoding="utf-8")


def _ridgeline(*arguments: str) -> Any:
    """Return the JSON that a command prints."""
    command = [sys.executable, "-m", "ridgeline", *arguments, "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _image(title: str, length: int, plan: Mapping[str, Any], traces: Sequence[Mapping[str, Any]]) -> str:
    """Return the SVG: a row for each part, and a panel of bars for each of the two steps."""
    answer, device = plan["answer"], traces[0]["device"]["title"]
    told = f"Predicted by ridgeline plan; measured by ridgeline trace, the median of {len(traces)}; {date.today()}"
    parts = [
        words(24, 34, f"{title} ({plan['model']['weights']}) on {device}", size=18, weight="bold"),
        words(24, 56, told, colour=QUIET),
    ]
    for at, label in enumerate((WHOLE, *PARTS.values())):
        weight = "bold" if label == WHOLE else "normal"
        parts.append(words(LEFT - 14, TOP + at * ROW + BAR + 5, label, anchor="end", size=13, weight=weight))
    parts += _step(
        LEFT, f"First token, after a prompt of {length} tokens", traces, "prefill", answer["ttft"]["expected"]
    )
    parts += _step(LEFT + PANEL, "Each further token", traces, "decode", answer["itl"]["expected"])
    bottom = TOP + (1 + len(PARTS)) * ROW + 18
    return document(WIDTH, bottom + 18, f"{title}: predicted and measured times", [*parts, *_legend(bottom)])


def _step(left: float, name: str, traces: Sequence[Mapping[str, Any]], step: str, predicted: float) -> Iterator[str]:
    """Draw the panel of one step, with the figures of its median trace. predicted: seconds of the step in the plan."""
    trace = sorted(traces, key=lambda each: each["steps"][step]["measured_s"])[len(traces) // 2]
    summary = trace["steps"][step]
    rows = [(predicted, summary["measured_s"], summary["floor_s"]), *_rows(trace, step)]
    most = max(seconds for row in rows for seconds in row)
    print(f"{step}: predicted {predicted * 1e3:.2f} ms, measured {summary['measured_s'] * 1e3:.2f} ms")
    yield words(left, TOP - 16, name, size=14, weight="bold")
    for at, row in enumerate(rows):
        yield from _bars(left, TOP + at * ROW, row, most)


def _rows(trace: Mapping[str, Any], step: str) -> list[tuple[float, float, float]]:
    """Return the predicted, the measured and the least seconds of each part of a step."""
    sums = {part: [0.0, 0.0, 0.0] for part in PARTS}
    for op in trace["ops"]:
        for at, key in enumerate(("expected_s", "measured_s", "bound_s")):
            sums[_part(op)][at] += op[step][key]
    summary = trace["steps"][step]
    overheads = sum(summary["overheads"].values())
    sums["engine"] = [summary["expected_s"] - summary["ops"]["expected_s"], overheads, 0.0]
    return [(expected, measured, bound) for expected, measured, bound in sums.values()]


def _part(op: Mapping[str, Any]) -> str:
    if op["kind"] == "linear":
        return "feed-forward" if ".mlp." in op["path"] else "attention"
    return {"attention": "cache", "head": "head"}.get(op["kind"], "rest")


def _bars(left: float, y: float, seconds: tuple[float, float, float], most: float) -> Iterator[str]:
    """Draw the predicted and the measured time of one part, and the least time as a dotted tick."""
    predicted, measured, least = seconds
    for at, (value, colour) in enumerate(((predicted, PREDICTED), (measured, MEASURED))):
        top, wide = y + at * (BAR + 2), max(1.0, value / most * FULL)
        yield f'<rect x="{left}" y="{top}" width="{wide:.1f}" height="{BAR}" fill="{colour}"/>'
        yield words(left + wide + 5, top + BAR - 1, f"{value * 1e3:.2f} ms", size=11, colour=INK)
    if least:
        x = left + least / most * FULL
        yield line(x, y - 3, x, y + 2 * BAR + 5, INK, 1.5, "2 2")


def _legend(y: float) -> Iterator[str]:
    x = float(LEFT)
    for label, colour in (("predicted", PREDICTED), ("measured", MEASURED)):
        yield f'<rect x="{x}" y="{y - 10}" width="12" height="{BAR}" fill="{colour}"/>'
        yield words(x + 18, y, label, size=12)
        x += 110
    yield line(x, y - 12, x, y + 2, INK, 1.5, "2 2")
    yield words(x + 8, y, "the least time that this hardware allows", size=12)


if __name__ == "__main__":
    main()
