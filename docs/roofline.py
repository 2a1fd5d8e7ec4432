"""The image of docs/trace.md: the roofline of the built-in model on the machine at hand, on light and dark ground.

ridgeline calibrate --threads 1
python docs/roofline.py
"""

import subprocess
import sys
from pathlib import Path

from ridgeline.util.document.svg_parts import on_dark

LIGHT = Path(__file__).with_name("roofline.svg")
DARK = LIGHT.with_stem("roofline-dark")


def main() -> None:
    """Trace the model, and draw its roofline on light and on dark ground."""
    trace = ["trace", "tales", "Once upon a time", "--threads", "1", "--roofline", str(LIGHT)]
    subprocess.run([sys.executable, "-m", "ridgeline", *trace], check=True, stdout=subprocess.DEVNULL)
    DARK.write_text(on_dark(LIGHT.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
