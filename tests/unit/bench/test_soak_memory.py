"""Whether the soak calls an operator's memory flat."""

import pytest

from tests.cluster.soak.operator_memory import Reading, growth, is_flat

JOBS_PER_READING = 12
RLJOB_KIB = 39.0
"""One of the soak's, as the operator's cache has it."""


def readings(
    count: int, *, warm_up_kib: float = 3000.0, leak_kib: float = 0.0, jumps_kib: float = 0.0
) -> list[Reading]:
    """A process that grows at first, and by `leak_kib` for each job."""
    found = []
    for number in range(1, count + 1):
        jobs = number * JOBS_PER_READING
        grown = warm_up_kib * min(1.0, number / (count // 3)) + leak_kib * jobs
        found.append(Reading(jobs, 0, 100_000 + grown + (jumps_kib if number == count else 0.0)))
    return found


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(readings(18), True, id="it only warms up"),
        pytest.param(readings(18, jumps_kib=20_000), True, id="one reading falls into a large turn"),
        pytest.param(readings(18, leak_kib=RLJOB_KIB), False, id="it keeps an RLJob for each job"),
    ],
)
def test_flat(given: list[Reading], expected: bool) -> None:
    assert is_flat(given) is expected


def test_growth_is_between_the_medians_of_the_last_two_thirds() -> None:
    assert growth([Reading(jobs, 0, 10.0 * jobs) for jobs in range(1, 10)]) == (3, 30.0)


def test_two_readings_show_no_growth() -> None:
    with pytest.raises(AssertionError, match="at least three"):
        growth(readings(6)[:2])
