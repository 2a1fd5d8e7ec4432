"""A run's checkpoint, finished or not, as an ordinary Hugging Face folder."""

from __future__ import annotations

from zoo.folder import export_run
from zoo.mixture.model import Shape
from zoo.tales.export import export

if __name__ == "__main__":
    export_run(lambda state, tokenizer, folder: export(state, Shape(), tokenizer, folder))
