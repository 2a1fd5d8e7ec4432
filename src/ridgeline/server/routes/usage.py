"""Token counts and times of a request: OpenAI's `usage`, and `timings` with llama.cpp's names."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ridgeline.engine.events import Event
from ridgeline.engine.request import NANOSECONDS, Timing


@dataclass(slots=True)
class Usage:
    """The token counts of one response, updated event by event."""

    prompt: int
    """The number of tokens of all prompts."""
    cached: dict[int, int] = field(default_factory=dict)
    """The number of prompt tokens found in the KV cache, by prompt index."""
    output: dict[int, int] = field(default_factory=dict)
    """The number of output tokens so far, by choice index."""
    reasoning: int = 0
    """The number of reasoning tokens of all choices."""

    def take(self, prompt: int, choice: int, event: Event) -> None:
        """Record an event of one choice; `choice` is its index in the response."""
        if event.choice == 0:  # further choices find the whole prompt in the cache
            self.cached[prompt] = event.cached
        self.output[choice] = self.output.get(choice, 0) + (event.token is not None)
        if event.output_tokens is not None:
            self.output[choice] = event.output_tokens
        self.reasoning += event.reasoning_tokens

    def body(self) -> dict[str, object]:
        """Return the counts as OpenAI's `usage` object."""
        completion = sum(self.output.values())
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": completion,
            "total_tokens": self.prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(self.cached.values())},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning},
        }


def timings(arrived: int, times: Sequence[Timing], usage: Usage) -> dict[str, float | int]:
    """Return the times of a response in milliseconds, as one interval over all its prompts and choices.

    prompt_n and prompt_ms cover the computed prompt tokens, from the first step to the first token. predicted_n counts
    the tokens of all choices, and predicted_ms runs from the first token to the last, as in llama.cpp. The rates are
    tokens per second. Unlike llama.cpp's, predicted_per_second leaves out the first token of each choice: predicted_ms
    begins when that token is there.

    Args:
        arrived: When the server received the request, in nanoseconds as in `GenerationRequest`.
        times: The timing of each choice.
        usage: The token counts.
    """
    cached, output = sum(usage.cached.values()), sum(usage.output.values())
    scheduled = min((time.scheduled for time in times if time.scheduled is not None), default=arrived)
    first = min((time.first_token for time in times if time.first_token is not None), default=scheduled)
    finished = max((time.finished for time in times if time.finished is not None), default=first)
    prefill, decode = _ms(first - scheduled), _ms(finished - first)
    after_first = sum(count - 1 for count in usage.output.values() if count > 0)
    return {
        "cache_n": cached,
        "prompt_n": usage.prompt - cached,
        "prompt_ms": prefill,
        "prompt_per_second": _rate(usage.prompt - cached, prefill),
        "predicted_n": output,
        "predicted_ms": decode,
        "predicted_per_second": _rate(after_first, decode),
        "queued_ms": _ms(scheduled - arrived),
        "first_token_ms": _ms(first - arrived),
        "total_ms": _ms(finished - arrived),
    }


def _ms(nanoseconds: int) -> float:
    return round(nanoseconds * NANOSECONDS * 1e3, 3)


def _rate(tokens: int, milliseconds: float) -> float:
    """Return tokens per second from a count and milliseconds; 0 if either is 0."""
    return round(tokens / milliseconds * 1e3, 3) if tokens > 0 and milliseconds > 0 else 0.0
