"""Speculative decoding: several tokens are guessed and verified in one step; only the number of steps changes."""

from dataclasses import dataclass

from ridgeline.engine import LLM, EngineSettings, SamplingParams
from ridgeline.engine.speculation.acceptance import expected_tokens
from ridgeline.engine.speculation.config import Speculation
from ridgeline.learn.lab.cost_calculator import CostCalculator
from ridgeline.learn.lab.experiment import Experiment, ExperimentOutcome
from ridgeline.learn.lab.instrumented_model import STORY
from ridgeline.util.document.charts import Chart, Series
from ridgeline.util.document.elements import DocumentTable, TableRow, columns

MODEL, GPU, CONTEXT, GUESSES = "llama-3-8b", "h100-sxm", 1000, 4
USERS = (1, 4, 16, 32, 64, 128, 256)
RIGHT = (0.3, 0.6, 0.9)
COUNT, MEMORY = 80, 8 << 20  # tokens to generate; bytes of KV memory


@dataclass(frozen=True, slots=True)
class SpeculativeRun:
    """The result of one generation, with or without speculative decoding: its tokens, steps, and accepted guesses."""

    tokens: list[int]
    """The tokens that the model generated in the run."""
    steps: int
    """The number of model steps that generated the tokens, the prefill included."""
    guessed: int = 0
    """The number of guessed (draft) tokens."""
    right: int = 0
    """The number of guessed tokens that the model accepted."""


def write(speculation: Speculation | None = None) -> SpeculativeRun:
    """Continue a story greedily with the built-in model."""
    llm = LLM("tales", EngineSettings(kv_bytes=MEMORY, speculation=speculation))
    (answer,) = llm.generate([STORY], SamplingParams(temperature=0.0, max_tokens=COUNT, ignore_eos=True))
    stats = llm.engine.stats
    tokens = list(answer.choices[0].token_ids)
    return SpeculativeRun(tokens, len(tokens) - stats.accepted_tokens, stats.draft_tokens, stats.accepted_tokens)


def run() -> ExperimentOutcome:
    """Run the experiment on speculative decoding: in the engine, then in the cost model for one and many users."""
    ledger = CostCalculator()
    plain, fast = write(), write(Speculation("ngram", GUESSES))
    alone = {n: ledger.decode(MODEL, GPU, n, CONTEXT) for n in USERS}
    checked = {n: ledger.verify(MODEL, GPU, n, CONTEXT, GUESSES) for n in USERS}
    dearer = {n: checked[n].expected / alone[n].expected for n in USERS}
    gain = {a: {n: expected_tokens(a, GUESSES) / dearer[n] for n in USERS} for a in RIGHT}
    rows = [TableRow((f"{n}", f"x {dearer[n]:.2f}", *(f"x {gain[a][n]:.2f}" for a in RIGHT))) for n in USERS]
    lines = [Series(f"{a:.0%} of drafts accepted", tuple(of.items())) for a, of in gain.items()]
    lines.append(Series("no speculation", ((USERS[0], 1.0), (USERS[-1], 1.0)), "dashed"))
    return ExperimentOutcome(
        (
            (
                plain.tokens == fast.tokens and fast.steps < 0.8 * plain.steps,
                f"{COUNT} equal tokens in {fast.steps} steps instead of {plain.steps}; {fast.right} of {fast.guessed} "
                "drafted tokens were accepted",
            ),
            (dearer[1] < 1.1, f"{1 + GUESSES} positions take {dearer[1]:.2f} times as long as one"),
            (
                gain[0.6][1] > 2 and gain[0.3][256] < 1,
                f"{gain[0.6][1]:.2f} times the speed for one user at 60 % accepted, {gain[0.3][256]:.2f} times for "
                "256 users at 30 %",
            ),
        ),
        (
            DocumentTable(
                columns("users", "step with 4 drafts", *(f"speedup at {a:.0%}" for a in RIGHT), words=()),
                tuple(rows),
            ),
            Chart(
                "Tokens per second compared with no speculation (8B, H100)",
                "users per step",
                "times",
                tuple(lines),
                log_x=True,
            ),
        ),
        {"steps": {"plain": plain.steps, "guessed": fast.steps}, "dearer": dearer, "gain": gain},
    )


EXPERIMENT = Experiment(
    "speculation",
    "How much faster is decoding with speculation?",
    (
        "Speculation leaves every token as it was, because the model verifies the drafts, and saves a fifth of the "
        "steps.",
        "For one user, verifying five positions takes hardly longer than one, because the weights are read once.",
        "With three of five drafts accepted, one user's decoding is twice as fast. With many users and few "
        "accepted, it is slower.",
    ),
    run,
)
