"""The plan of a speech model in hours of audio: a request is one window, which yields a number of tokens."""

from dataclasses import dataclass

from ridgeline.core.models.common.model import Model
from ridgeline.core.models.families.whisper import SECONDS_PER_ROW
from ridgeline.price.interval_text import cost_with
from ridgeline.price.plan.scenario import PlanWorkload

_HOUR, _MILLION = 3600.0, 1e6


@dataclass(frozen=True, slots=True)
class AudioWorkload:
    """The audio of a speech request and the tokens it yields."""

    window: float
    """The seconds of audio per request."""
    tokens: int
    """The tokens that the model emits per window."""

    def rate(self, tokens_per_second: float) -> float:
        """Return the hours of audio transcribed per hour."""
        return tokens_per_second / self.tokens * self.window

    def per_hour(self, million: float) -> float:
        """Return the dollars or kWh per hour of audio for those of a million tokens."""
        return million / _MILLION * self.tokens * _HOUR / self.window


def audio_workload(model: Model, workload: PlanWorkload) -> AudioWorkload | None:
    """Return the audio workload of a speech model, or None for a model that reads no audio."""
    return AudioWorkload(model.encoder_context * SECONDS_PER_ROW, workload.output) if model.encoder_width else None


def describe_cost(million: float, sound: AudioWorkload | None, factors: tuple[float, float]) -> str:
    """Return a price as `$0.48 [$0.31 .. $0.90] per million`, or for a speech model per hour of audio.

    Args:
        million: The dollars per million tokens.
        sound: The audio of a request; None for a model that reads no audio.
        factors: The ends of the interval, as multiples of the dollars.
    """
    cost, unit = (million, "million") if sound is None else (sound.per_hour(million), "hour of audio")
    return f"{cost_with(cost, factors)} per {unit}"
