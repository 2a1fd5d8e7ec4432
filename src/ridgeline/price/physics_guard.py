"""A check that no measurement beats the floor: one that does has a wrong specification, shape or timer.

A floor only applies to measurements on its own device.
"""

# The tolerance for clocks that boost, rounded data sheets and timer jitter.
SLACK = 0.10


def under_floor(measured: float, floor: float) -> bool:
    """Return whether measured seconds are below the floor by more than the tolerance `SLACK`."""
    return measured < (1 - SLACK) * floor


def beats_floor(measured: float, floor: float) -> str | None:
    """Return a line that says by how much measured seconds beat the floor, or None if they do not.

    Seconds that are below the floor by no more than the tolerance `SLACK` do not count as beating it.

    Raises:
        ValueError: If a time is negative or not finite. 0 is valid, since a coarse timer may report it.
    """
    if not 0 <= measured < float("inf") or not 0 <= floor < float("inf"):
        raise ValueError(
            f"the measured time is {measured} s and the floor is {floor} s; both must be finite and at least 0"
        )
    if not under_floor(measured, floor):
        return None
    how = f"is {floor / measured:.2f} x faster than" if measured else "is less than"
    return (
        f"measured {measured * 1e3:.4g} ms {how} the floor of {floor * 1e3:.4g} ms: the device's specification, the "
        "shape or the timer is wrong"
    )
