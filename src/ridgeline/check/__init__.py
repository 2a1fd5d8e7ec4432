"""Whether what is in a model's folder is sound.

`check.py` asks in order: `files.py` for shards and their index, `tensors.py` for names, shapes, dtypes and numbers,
`texts.py` for tokenizer and chat template, `ids.py` for special tokens, `smoke.py` for a few tokens out of the engine.
Each gives problems, a line each with its fix; `report.py` holds them.
"""

from ridgeline.check.check import check_model
from ridgeline.check.report import Finding, Report

__all__ = ["Finding", "Report", "check_model"]
