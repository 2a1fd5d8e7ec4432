"""Guess and check: several tokens guessed, all verified in one step; nothing changes but the number of steps."""

from dataclasses import dataclass

from ridgeline.document.charts import Chart, Series
from ridgeline.document.page import Row, Table, columns
from ridgeline.lab.experiment import Experiment, Outcome
from ridgeline.lab.inside import STORY, Inside
from ridgeline.lab.ledger import Ledger

MODEL, CARD, CONTEXT, DRAFTS = "llama-3-8b", "h100-sxm", 1000, 4
USERS = (1, 4, 16, 32, 64, 128, 256)
ACCEPTED = (0.3, 0.6, 0.9)
COUNT, LAST = 80, 2  # tokens to write; how many at the end of the text are looked for earlier in it


@dataclass(frozen=True, slots=True)
class Written:
    """tokens: what was written. passes: of the model that it took; guessed, accepted: tokens."""

    tokens: list[int]
    passes: int
    guessed: int
    accepted: int


def guess(ids: list[int], count: int) -> list[int]:
    """What followed the last time that the text had its last tokens; nothing where it never had."""
    end = ids[-LAST:]
    for start in range(len(ids) - LAST - 1, -1, -1):
        if ids[start : start + LAST] == end:
            return ids[start + LAST : start + LAST + count]
    return []


def write(tales: Inside, prompt: list[int], drafts: int) -> Written:
    """Greedily, up to `drafts` guesses a pass: those that the model would have chosen too are kept, and its own choice
    after them."""
    ids, passes, guessed, accepted = list(prompt), 0, 0, 0
    while len(ids) < len(prompt) + COUNT:
        guesses = guess(ids, drafts)
        own = tales.logits([*ids, *guesses])[len(ids) - 1 :].argmax(-1).tolist()
        kept = next((n for n, (one, other) in enumerate(zip(guesses, own, strict=False)) if one != other), len(guesses))
        ids += own[: kept + 1]
        passes, guessed, accepted = passes + 1, guessed + len(guesses), accepted + kept
    return Written(ids[len(prompt) : len(prompt) + COUNT], passes, guessed, accepted)


def tokens_a_pass(accepted: float, drafts: int) -> float:
    """On average, each guess being right with this chance and those after a wrong one thrown away: 1 + a + ... + a^k
    (Leviathan and others, Fast Inference from Transformers via Speculative Decoding, 2023)."""
    return sum(accepted**n for n in range(drafts + 1))


def run() -> Outcome:
    """In the built-in model, and in the ledger for one user and many."""
    tales, ledger = Inside(), Ledger()
    prompt = tales.ids(STORY)
    plain, fast = write(tales, prompt, 0), write(tales, prompt, DRAFTS)
    alone = {n: ledger.decode(MODEL, CARD, n, CONTEXT) for n in USERS}
    checked = {n: ledger.verify(MODEL, CARD, n, CONTEXT, DRAFTS) for n in USERS}
    dearer = {n: checked[n].expected / alone[n].expected for n in USERS}
    gain = {a: {n: tokens_a_pass(a, DRAFTS) / dearer[n] for n in USERS} for a in ACCEPTED}
    rows = [Row((f"{n}", f"x {dearer[n]:.2f}", *(f"x {gain[a][n]:.2f}" for a in ACCEPTED))) for n in USERS]
    lines = [Series(f"{a:.0%} of guesses right", tuple(of.items())) for a, of in gain.items()]
    lines.append(Series("none guessed", ((USERS[0], 1.0), (USERS[-1], 1.0)), "dashed"))
    return Outcome(
        (
            (
                plain.tokens == fast.tokens and fast.passes < 0.8 * plain.passes,
                f"{COUNT} equal tokens in {fast.passes} passes for {plain.passes}; {fast.accepted} of {fast.guessed} "
                f"guesses were right",
            ),
            (dearer[1] < 1.1, f"{1 + DRAFTS} positions take {dearer[1]:.2f} of the time of one"),
            (
                gain[0.6][1] > 2 and gain[0.3][256] < 1,
                f"x {gain[0.6][1]:.2f} for one user at 60 %, x {gain[0.3][256]:.2f} for 256 at 30 %",
            ),
        ),
        (
            Table(
                columns("users", "a step with 4 guesses", *(f"gain at {a:.0%}" for a in ACCEPTED), words=()),
                tuple(rows),
            ),
            Chart(
                "Tokens a second, beside none guessed (8B, H100, guesses that cost nothing)",
                "users in a step",
                "times",
                tuple(lines),
                log_x=True,
            ),
        ),
        {"passes": {"plain": plain.passes, "guessed": fast.passes}, "dearer": dearer, "gain": gain},
    )


EXPERIMENT = Experiment(
    "speculation",
    "What does guessing ahead gain?",
    (
        "Guesses that the model checks leave every token as it was, and save a fifth of the passes.",
        "For one user, checking five positions costs hardly more than one: the weights are read once for all.",
        "With three guesses of five right one user is served twice as fast; with many users and poor guesses it loses.",
    ),
    run,
    __file__,
)
