"""What a speech model does, in sound: a request is a window of it, and so many tokens are said of each."""

from dataclasses import dataclass

from ridgeline.core.models.common.model import Model
from ridgeline.core.models.families.whisper import MOMENT
from ridgeline.price.plan.scenario import PlanWorkload
from ridgeline.util.document.humanize import three_digits

_HOUR, _MILLION = 3600.0, 1e6


@dataclass(frozen=True, slots=True)
class AudioWorkload:
    """window: seconds of sound of a request. tokens: said of it."""

    window: float
    tokens: int

    def rate(self, tokens_per_second: float) -> float:
        """Hours of sound an hour."""
        return tokens_per_second / self.tokens * self.window

    def dollars(self, million: float) -> float:
        """Dollars for an hour of sound, at so many for a million tokens."""
        return million / _MILLION * self.tokens * _HOUR / self.window


def audio_workload(model: Model, workload: PlanWorkload) -> AudioWorkload | None:
    """The windows that a model is given; None where it reads no sound."""
    return AudioWorkload(model.encoder_context * MOMENT, workload.output) if model.encoder_width else None


def describe_cost(million: float, sound: AudioWorkload | None) -> str:
    """`$0.48 a million`, of speech `$0.0031 an hour of sound`."""
    return (
        f"${three_digits(million)} a million"
        if sound is None
        else f"${three_digits(sound.dollars(million))} an hour of sound"
    )
