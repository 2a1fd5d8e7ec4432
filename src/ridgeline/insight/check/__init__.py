"""A check of a model folder or GGUF file for errors.

`model_check.py` runs all checks in order: `shard_check.py` for shards and their index, `tensors.py` for names, shapes,
dtypes and numbers, `tokenizer_check.py` for tokenizer and chat template, `ids.py` for special tokens, and `smoke.py`
for a few generated tokens. Each reports problems, one line each with its fix; `check_report.py` holds them.
"""

from ridgeline.insight.check.check_report import CheckReport, Finding
from ridgeline.insight.check.model_check import check_model

__all__ = ["CheckReport", "Finding", "check_model"]
