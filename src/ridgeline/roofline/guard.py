"""The physics guard: no measurement beats the floor. One that does has the spec, the shape or the timer wrong."""

# Clocks boost, sheets round, timers jitter.
SLACK = 0.10


def beats_floor(measured: float, floor: float) -> str | None:
    """Seconds measured against the floor: a line that says what is wrong, or None if nothing is.

    Raises ValueError for times that are no times.
    """
    if not 0 < measured < float("inf") or not 0 <= floor < float("inf"):
        raise ValueError(f"measured {measured} s against a floor of {floor} s; both must be finite, measured above 0")
    if measured >= floor * (1 - SLACK):
        return None
    return (
        f"measured {measured * 1e3:.4g} ms is {floor / measured:.2f} x faster than the floor of {floor * 1e3:.4g} ms: "
        "the card's figures, the shape or the timer is wrong"
    )
