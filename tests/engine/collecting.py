"""Steps until nothing is left to do, with an end to patience."""

from collections.abc import Callable

from ridgeline.engine.engine import Engine
from ridgeline.engine.events import TokenEvent
from ridgeline.engine.output_processor import with_text
from ridgeline.engine.result import Choice

Choices = dict[tuple[int, int], Choice]  # by request and choice


def take(choices: Choices, events: list[TokenEvent]) -> None:
    """Add what events say; a choice that has ended says nothing more."""
    for event in events:
        choice = choices.setdefault((event.request, event.choice), Choice(event.choice))
        assert choice.finish is None, f"{event} after the end"
        choice.take(with_text(event))


def finish_all(engine: Engine, before_step: Callable[[int], object] | None = None, most_steps: int = 5_000) -> Choices:
    """Every choice of every request, run to its end. `before_step` is called with the number of each step."""
    choices: Choices = {}
    for step in range(most_steps):
        if not engine.has_work:
            return choices
        if before_step is not None:
            before_step(step)
        take(choices, engine.step())
        engine.kv_cache_manager.check()
    raise AssertionError(f"not done after {most_steps} steps: {len(engine.requests)} requests are left")
