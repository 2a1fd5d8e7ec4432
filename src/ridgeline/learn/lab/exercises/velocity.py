"""Guidance: away from what the model sees without the prompt, towards what it sees with it."""


def velocity(positive: list[float], negative: list[float], scale: float) -> list[float]:
    """What a guided step follows: `negative`, and from there `scale` times the way to `positive`.

    The denoiser gave `positive` with the prompt and `negative` without. A scale of 1 is the prompt alone.
    """
    return [n + scale * (p - n) for p, n in zip(positive, negative, strict=True)]
