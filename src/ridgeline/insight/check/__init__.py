"""A check of a model folder or GGUF file for errors.

`model_check.py` runs all checks: `shard_check.py` for shards and their index, `tensors.py` for names, shapes, dtypes
and numbers, `ids.py` for special tokens and the generation config, `tokenizer_check.py` for tokenizer and chat
template, and, if all these find nothing, `smoke.py` for a run on a short prompt. Each reports problems, one line each,
mostly with its fix; `check_report.py` holds them.
"""

from ridgeline.insight.check.check_report import CheckReport, Finding
from ridgeline.insight.check.model_check import check_model

__all__ = ["CheckReport", "Finding", "check_model"]
