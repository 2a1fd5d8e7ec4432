"""The clock of a simulation, in integer nanoseconds that only the simulation advances."""


class SimulatedClock:
    """The simulated time, which the engine reads by calling the clock; it is independent of wall time."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        """Return the current simulated time in nanoseconds."""
        return self.now

    def to(self, moment: int) -> None:
        """Advance the clock to a later or equal time."""
        assert moment >= self.now, "time must not go backwards"
        self.now = moment
