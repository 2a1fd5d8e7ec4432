"""The physics guard: no measurement beats the floor. One that does has the spec, the shape or the timer wrong.

A floor holds for measurements on its own device, and says nothing of those on another.
"""

# Clocks boost, sheets round, timers jitter.
SLACK = 0.10


def under_floor(measured: float, floor: float) -> bool:
    """Whether seconds measured are fewer than the floor allows, with the slack that figures have."""
    return measured < (1 - SLACK) * floor


def beats_floor(measured: float, floor: float) -> str | None:
    """Seconds measured against the floor: a line that says what is wrong, or None if nothing is.

    Raises ValueError for times that are no times; 0 is one, of a timer that ticks too slowly.
    """
    if not 0 <= measured < float("inf") or not 0 <= floor < float("inf"):
        raise ValueError(f"measured {measured} s against a floor of {floor} s; both must be finite and not below 0")
    if not under_floor(measured, floor):
        return None
    how = f"is {floor / measured:.2f} x faster than" if measured else "is less than"
    return (
        f"measured {measured * 1e3:.4g} ms {how} the floor of {floor * 1e3:.4g} ms: "
        "the card's figures, the shape or the timer is wrong"
    )
