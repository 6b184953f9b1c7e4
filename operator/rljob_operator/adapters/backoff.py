"""How long to wait before something that failed is tried again. Called by whoever tries; who are many add a jitter."""

_MOST_DOUBLINGS = 16
"""A float has an end."""


def backoff_seconds(failures: int, first: float, longest: float) -> float:
    """Seconds after so many failures in a row (1: the first one): `first`, then twice as long each time."""
    return min(longest, first * 2.0 ** min(failures - 1, _MOST_DOUBLINGS))
