"""A clock that tests move."""


class Clock:
    """Stands still in between."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        """Time goes on without waiting."""
        self.now += seconds
