"""The clock of a simulation: integer nanoseconds that nothing moves but the simulation itself."""


class SimulatedClock:
    """What time it is there. The engine reads it by calling it; how long the simulation itself takes is not in it."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now

    def to(self, moment: int) -> None:
        """Go on to a moment, which is none that has passed."""
        assert moment >= self.now, "time goes forwards"
        self.now = moment
