"""When an engine that was never up is not started again for nothing: a count over the ends of its incarnations."""

from collections.abc import Sequence

import pytest

from rljob_workers.launcher.engine_deaths import MAX_BY_ONE_CAUSE, MAX_STARTS, VainStarts

LACKS = "AttributeError: 'Gemma2Config' object has no attribute 'hidden_act' (gemma2.py:231, in __init__)"
FULL = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has {} MiB free"
SCHEDULER = "RuntimeError: Rank 0 scheduler died during initialization (exit code: {}). If exit code is -9 (SIGKILL), a"
TAKEN = "OSError: [Errno 98] Address already in use"


@pytest.mark.parametrize(
    ("causes", "in_vain_at"),
    [
        pytest.param([LACKS] * 5, MAX_BY_ONE_CAUSE, id="one cause that lasts"),
        pytest.param([f"its process {n} has died at 0x{n:x}" for n in range(9)], MAX_BY_ONE_CAUSE, id="numbers change"),
        pytest.param([LACKS, TAKEN, LACKS, TAKEN, LACKS, LACKS, LACKS], 7, id="a cause has to repeat itself in a row"),
        pytest.param([FULL.format(n) for n in range(20)], MAX_STARTS, id="memory of a process that ends comes free"),
        pytest.param([SCHEDULER.format(-9)] * 20, MAX_STARTS, id="so does what the kernel has ended a scheduler for"),
        pytest.param([SCHEDULER.format(1)] * 20, MAX_BY_ONE_CAUSE, id="but one that has ended by itself will again"),
        pytest.param([TAKEN] * 20, MAX_STARTS, id="so does a port"),
        pytest.param([None] * 20, MAX_STARTS, id="killed without a word, perhaps by somebody"),
        pytest.param([f"KeyError: '{text}'" for text in "abcdefghijkl"], MAX_STARTS, id="another one each time"),
        pytest.param([LACKS] * (MAX_BY_ONE_CAUSE - 1), None, id="not often enough"),
    ],
)
def test_the_start_that_was_one_too_many(causes: Sequence[str | None], in_vain_at: int | None) -> None:
    starts = VainStarts()
    found = [number for number, cause in enumerate(causes, 1) if starts.ended(cause)]
    assert (found[0] if found else None) == in_vain_at


def test_an_engine_that_was_up_can_work() -> None:
    starts = VainStarts()
    starts.ended(LACKS)
    starts.up()
    assert not any(starts.ended(LACKS) for _ in range(2 * MAX_STARTS))
