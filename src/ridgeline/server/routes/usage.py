"""What a request used and what it took: OpenAI's `usage`, and `timings` under llama.cpp's names."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ridgeline.engine.events import Event
from ridgeline.engine.request import NANOSECONDS, Timing


@dataclass(slots=True)
class Usage:
    """Token counts of one answer, kept up to date event by event.

    prompt: tokens of all prompts. cached: those found in KV memory, by prompt.
    output: tokens of each choice so far.
    """

    prompt: int
    cached: dict[int, int] = field(default_factory=dict)
    output: dict[int, int] = field(default_factory=dict)
    reasoning: int = 0

    def take(self, prompt: int, choice: int, event: Event) -> None:
        """Count an event of the choice that has this index in the answer."""
        if event.choice == 0:  # further choices find the whole prompt
            self.cached[prompt] = event.cached
        self.output[choice] = self.output.get(choice, 0) + (event.token is not None)
        if event.output_tokens is not None:
            self.output[choice] = event.output_tokens
        self.reasoning += event.reasoning_tokens

    def body(self) -> dict[str, object]:
        """As OpenAI has it."""
        completion = sum(self.output.values())
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": completion,
            "total_tokens": self.prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(self.cached.values())},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning},
        }


def timings(arrived: int, times: Sequence[Timing], usage: Usage) -> dict[str, float | int]:
    """Return the times of a response, in milliseconds. Several choices and prompts at once are one stretch of time.

    arrived: the time at which the server took the request up, as GenerationRequest. prompt_n and prompt_ms: tokens
    computed, from the first step to the first token. predicted_n: all tokens of all choices; predicted_ms: from the
    first token to the last, as llama.cpp counts them. The rates are n / ms.
    """
    cached, output = sum(usage.cached.values()), sum(usage.output.values())
    scheduled = min((time.scheduled for time in times if time.scheduled is not None), default=arrived)
    first = min((time.first_token for time in times if time.first_token is not None), default=scheduled)
    finished = max((time.finished for time in times if time.finished is not None), default=first)
    prefill, decode = _ms(first - scheduled), _ms(finished - first)
    return {
        "cache_n": cached,
        "prompt_n": usage.prompt - cached,
        "prompt_ms": prefill,
        "prompt_per_second": _rate(usage.prompt - cached, prefill),
        "predicted_n": output,
        "predicted_ms": decode,
        "predicted_per_second": _rate(output, decode),
        "queued_ms": _ms(scheduled - arrived),
        "first_token_ms": _ms(first - arrived),
        "total_ms": _ms(finished - arrived),
    }


def _ms(nanoseconds: int) -> float:
    return round(nanoseconds * NANOSECONDS * 1e3, 3)


def _rate(tokens: int, milliseconds: float) -> float:
    """Tokens a second; 0 where there were none, or no time to count."""
    return round(tokens / milliseconds * 1e3, 3) if tokens > 0 and milliseconds > 0 else 0.0
