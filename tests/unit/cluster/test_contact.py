"""Since when nothing was learned of a coordinator, and what is said of it."""

import pytest

from rljob_operator.cluster.coordinators import LONGEST_MESSAGE, CoordinatorContact, shown
from rljob_operator.coordinator_client.link import CoordinatorRefused, CoordinatorTooLong, CoordinatorUnreachable
from rljob_operator.core import NoContact, Reason

ASKED = "operator op asks the coordinator: GET u: no answer"


def made(now: list[float]) -> CoordinatorContact:
    return CoordinatorContact("op", lambda: now[0])


def test_a_silence_begins_with_the_first_question_that_had_no_answer() -> None:
    now = [100.0]
    contact = made(now)
    assert contact.silence() is None
    contact.refused(CoordinatorUnreachable("GET u: no answer"), seconds=10.0)
    now[0] = 150.0
    contact.refused(CoordinatorUnreachable("GET u: no answer"), seconds=10.0)
    assert contact.silence() == NoContact(90.0, Reason.COORDINATOR_UNREACHABLE, ASKED, 90.0)
    contact.answered()
    assert contact.silence() is None


def test_a_pod_that_comes_up_is_not_out_of_reach_since_before_it_was_there() -> None:
    now = [100.0]
    contact = made(now)
    contact.has_no_ready_pod([])
    silence = contact.silence()
    assert silence is not None
    assert silence.message == "coordinator (it has no pod)"
    now[0] = 140.0
    contact.refused(CoordinatorUnreachable("GET u: no answer"), seconds=3.0)
    assert contact.silence() == NoContact(100.0, Reason.COORDINATOR_UNREACHABLE, ASKED, 137.0)


@pytest.mark.parametrize("error", [CoordinatorRefused("x"), CoordinatorTooLong("x")])
def test_an_answer_that_is_not_taken_is_another_reason(error: CoordinatorRefused) -> None:
    contact = made([100.0])
    contact.refused(error, seconds=0.0)
    silence = contact.silence()
    assert silence is not None
    assert silence.reason is Reason.COORDINATOR_REFUSED


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("a\n\tb\x1b[31m  c\u202e", "a b [31m c"),
        ("x" * (LONGEST_MESSAGE + 1), "x" * (LONGEST_MESSAGE - 3) + "..."),
        ("x" * LONGEST_MESSAGE, "x" * LONGEST_MESSAGE),
    ],
    ids=["what a terminal would obey", "too long", "just as long as it may be"],
)
def test_what_another_stated_is_one_line_that_can_be_read(message: str, line: str) -> None:
    assert shown(message) == line
