"""The built-in `mixture`: Mixtral as transformers has it, whose experts are not alike by every text's tokens."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from models.comparing import TOLERANCE, off
from ridgeline.backends.model_loader import load_model
from ridgeline.core.checkpoint.source import BUILTIN
from ridgeline.core.ops.experts import Experts
from ridgeline.engine import LLM, SamplingParams
from ridgeline.insight.trace.expert_sources import BATCHES, expert_sources
from support.engines import uncached_logits

TEXTS = {path.stem: path.read_text(encoding="utf-8") for path in Path(__file__).parents[2].glob("docs/texts/*.txt")}
MAX_BYTES, MAX_BYTES_OF_ALL = 4_000_000, 40_000_000  # bytes of its files, and of all built-in models
NATS = {"story": 3.0, "french": 2.8, "elizabethan": 3.9}
SCORED = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, prompt_logprobs=0)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("mixture")


@pytest.fixture(scope="module")
def ids(llm: LLM) -> dict[str, list[int]]:
    """A story, a page of French and a scene in Elizabethan verse, written for this and never trained on."""
    assert set(TEXTS) == {"story", "french", "elizabethan"}
    return {name: llm.encode(text) for name, text in TEXTS.items()}


def test_it_is_as_small_as_it_says() -> None:
    sizes = {path: path.stat().st_size for path in BUILTIN.glob("*/*")}
    assert sum(size for path, size in sizes.items() if path.parent.name == "mixture") <= MAX_BYTES
    assert sum(sizes.values()) <= MAX_BYTES_OF_ALL


def test_it_is_mixtral(tmp_path: Path, ids: dict[str, list[int]]) -> None:
    """Logits of every position, in fp32, of transformers and of its own folder as transformers writes it."""
    theirs = AutoModelForCausalLM.from_pretrained(BUILTIN / "mixture", dtype=torch.float32).eval()
    assert type(theirs).__name__ == "MixtralForCausalLM"
    theirs.save_pretrained(tmp_path)
    ours = load_model(str(tmp_path))
    for text in ids.values():
        piece = text[:200]
        (logits_TV,) = uncached_logits(ours, [piece])
        with torch.inference_mode():
            assert off(logits_TV, theirs(torch.tensor([piece])).logits[0]) < TOLERANCE


def test_it_has_learned_each_source(llm: LLM, ids: dict[str, list[int]]) -> None:
    """Nats a token of a text that it never saw, of the ln 2048 = 7.6 of who has learned nothing."""
    for name, text in ids.items():
        (completion,) = llm.generate([text[:500]], SCORED)
        assert completion.prompt_logprobs is not None
        scored = [score.logprob for score in completion.prompt_logprobs if score is not None]
        assert -sum(scored) / len(scored) < NATS[name]


def test_its_experts_differ_by_source(llm: LLM, ids: dict[str, list[int]]) -> None:
    """In every layer more than whenever the texts' pieces were dealt by chance, and so do experts of each text."""
    model = llm.loaded.model
    found = expert_sources(model, ids)
    assert [own.layer for own in found.layers] == [0, 1, 2, 3]
    for own in found.layers:
        for effect in (own.apart, own.information):
            assert effect.found > effect.most
            assert effect.found > effect.shuffled + 4 * effect.deviation
    assert [row.batch for row in found.touched] == list(BATCHES)
    op = next(op for _, op in model.ops() if isinstance(op, Experts))
    assert (op.count, op.active) == (8, 2)
    for row in found.touched:
        assert row.formula == pytest.approx(8 * (1 - 0.75**row.batch))
        assert row.mixed == pytest.approx(row.formula, abs=0.3), "all texts together use the experts alike"
    assert any(row.alone < row.formula - 0.5 for row in found.touched), "one text does not"
