"""Whether a launcher was cut off from the coordinator, too, when one of its ranks left for want of it."""

import pytest

from rljob_workers.launcher.ranks import AFTER_SECONDS, LOST_SECONDS, Contact


@pytest.mark.parametrize(
    ("answers", "asked_at", "expected"),
    [
        pytest.param([1, 2, 3, 4], 5, False, id="it was answered a moment ago"),
        pytest.param([1, 2], 2 + LOST_SECONDS + 1, True, id="it has not been answered for a while"),
        pytest.param([1, 30, 31], 32, True, id="it was answered again just before"),
        pytest.param([1, 30, 31, 50], 51, True, id="and again was not"),
        pytest.param([1, 30, *range(31, 60)], 30 + AFTER_SECONDS + 1, False, id="it has been answered since long"),
        pytest.param([], LOST_SECONDS + 1, True, id="it was never answered"),
    ],
)
def test_whether_it_was_cut_off(answers: list[float], asked_at: float, expected: bool) -> None:
    now = [0.0]
    contact = Contact(lambda: now[0])
    for at in [at for at in answers if at <= asked_at]:
        now[0] = at
        contact.answered()
    now[0] = asked_at
    assert contact.is_cut_off == expected
