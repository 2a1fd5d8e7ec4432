"""Whether what is in a model's folder is sound.

`model_check.py` asks in order: `shard_check.py` for shards and their index, `tensors.py` for names, shapes, dtypes and
numbers, `tokenizer_check.py` for tokenizer and chat template, `ids.py` for special tokens, `smoke.py` for a few tokens
out of the engine. Each gives problems, a line each with its fix; `check_report.py` holds them.
"""

from ridgeline.insight.check.check_report import CheckReport, Finding
from ridgeline.insight.check.model_check import check_model

__all__ = ["CheckReport", "Finding", "check_model"]
