"""The fixtures of the tests of real models. All of them skip unless `make real` has fetched what they need."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from real.llama_cpp import LlamaCpp
from real.packages import LLAMA_CPP, SMOLLM2
from ridgeline.backends.cpu.library import Library

logging.disable_progress_bar()


@pytest.fixture(scope="module")
def exact_products() -> Iterator[None]:
    """Leave out the kernels that round the rows of a product to 8 bits, as llama.cpp does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Library, "interleaves", False)
        yield


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct."""
    return SMOLLM2.find()


@pytest.fixture(scope="session")
def theirs(smollm2: Path) -> PreTrainedModel:
    """The model that transformers reads from the file, dequantised to fp32."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        smollm2.parent, gguf_file=smollm2.name, dtype=torch.float32
    )
    return model.eval().requires_grad_(False)


@pytest.fixture(scope="session")
def llama_cpp(smollm2: Path) -> Iterator[LlamaCpp]:
    """A llama.cpp server of the same file."""
    with LlamaCpp.start(LLAMA_CPP.find().parent, smollm2) as server:
        yield server
