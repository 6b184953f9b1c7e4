"""The core decides as it did when its decisions were recorded: 200 fault schedules, turn by turn, byte by byte.

Each turn is decided from what is recorded of it, so that a decision that differs changes nothing of the turns after it.
"""

from itertools import islice

import pytest

from tests.recorded.decisions import recording, schedules
from tests.recorded.decisions.form import form_of

Schedules = dict[str, list[recording.RecordedTurn]]


@pytest.fixture(scope="module")
def recorded() -> Schedules:
    """By name."""
    return dict(recording.recorded())


def test_all_schedules_are_recorded(recorded: Schedules) -> None:
    assert len(recorded) == 200
    assert list(recorded) == [f"{kind}/{seed}" for kind, seed in schedules.names()]


@pytest.mark.parametrize("kind", schedules.KINDS)
def test_every_turn_is_decided_as_it_was(recorded: Schedules, kind: str) -> None:
    of_kind = {name: turns for name, turns in recorded.items() if name.startswith(f"{kind}/")}
    found = (recording.mismatch(name, turns) for name, turns in of_kind.items())
    mismatches = list(islice((str(one) for one in found if one is not None), 3))
    assert not mismatches, "\n".join(mismatches)
    assert of_kind


def test_a_decision_that_differs_is_named_with_its_schedule_turn_and_field(recorded: Schedules) -> None:
    name, turns = next(iter(recorded.items()))
    status = turns[3].decision["status"]
    assert isinstance(status, dict)
    other = {**turns[3].decision, "status": {**status, "phase": "Paused"}}
    changed = [*turns[:3], recording.RecordedTurn(turns[3].given, other), *turns[4:]]
    text = f'schedule {name}, turn 3: status.phase was "Paused", and is "{status["phase"]}"'
    assert str(recording.mismatch(name, changed)) == text


def test_a_schedule_that_is_packed_is_the_same_unpacked() -> None:
    turns = [
        recording.RecordedTurn(form, {"status": form["status"]}) for form in map(form_of, schedules.turns_of("edit", 0))
    ]
    assert list(recording.unpacked(recording.packed(turns))) == turns
