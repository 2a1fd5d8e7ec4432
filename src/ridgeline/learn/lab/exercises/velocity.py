"""Guidance: away from the model's prediction without the prompt, towards the one with it."""


def velocity(positive: list[float], negative: list[float], scale: float) -> list[float]:
    """Return the velocity of a guided step: `negative`, plus `scale` times the way from there to `positive`.

    The denoiser predicted `positive` with the prompt and `negative` without. A scale of 1 is the prompt alone.
    """
    return [n + scale * (p - n) for p, n in zip(positive, negative, strict=True)]
