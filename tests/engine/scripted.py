"""A model that says what it is told to, behind an LLM over a folder."""

from collections.abc import Sequence

from ridgeline.engine import LLM, EngineSettings, SamplingParams
from ridgeline.engine.events import Event
from ridgeline.engine.sampling import RowFailure, Sampled, SampleRow
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.step_plan import StepPlan

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
SETTINGS = EngineSettings(kv_bytes=4e6, limits=Limits(tokens=64, requests=8))
EOS, LETTER = 257, 40


class Scripted:
    """An executor that says what it was told to, whatever the model would: a list of tokens for each choice."""

    def __init__(self, *scripts: Sequence[int]) -> None:
        self.scripts = scripts

    def execute(self, plan: StepPlan, rows: Sequence[SampleRow]) -> Sequence[Sampled | RowFailure]:
        return [Sampled(self.scripts[row.choice % len(self.scripts)][row.generated]) for row in rows]


def say(llm: LLM, *texts: str) -> None:
    """Make the model say these texts, one for each choice, token by token, and then end."""
    ids = [llm.tokenizer.encode(text, add_special=False) for text in texts]
    llm.engine.executor = Scripted(*([*i, *llm.tokenizer.eos_ids] for i in ids))


def text_of(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events)
