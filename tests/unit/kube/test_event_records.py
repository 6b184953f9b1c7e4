"""Which decisions are warnings."""

from rljob_api.names import Scope
from rljob_operator.core import Event, Reason
from rljob_operator.core.reasons import TROUBLES
from rljob_operator.kube.events import record_of


def test_good_news_and_requests_are_normal_and_the_rest_is_a_warning() -> None:
    kinds = {reason: record_of(Event(0.0, reason, "x")).type for reason in Reason}

    assert kinds[Reason.READY] == kinds[Reason.SUCCEEDED] == kinds[Reason.SCALED_UP] == "Normal"
    assert kinds[Reason.EVALUATED] == kinds[Reason.EVALUATION_UNFINISHED] == "Normal"
    assert kinds[Reason.QUEUE_DRAINING] == kinds[Reason.TICKETS_GIVEN] == "Normal"
    assert {kinds[reason] for reason in TROUBLES} == {"Warning"}
    assert kinds[Reason.RANK_EXITED] == kinds[Reason.STALLED] == kinds[Reason.MAX_GLOBAL_RESTARTS] == "Warning"


def test_the_action_states_what_was_restarted() -> None:
    assert record_of(Event(0.0, Reason.RANK_EXITED, "x", scope=Scope.GLOBAL)).action == "RestartGlobal"
    assert record_of(Event(0.0, Reason.READY, "x")).action == "Decide"
