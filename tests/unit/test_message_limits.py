"""What a message of another process may say: texts, lists and numbers that can be so."""

import math

import pytest

from rljob_api.base import MOST_CHARACTERS, MOST_NAMES
from rljob_api.names import Role
from rljob_api.status import RLJobStatus
from rljob_api.wire.observation import CoordinatorStatus
from rljob_operator.coordinator_client.link import LARGEST_NUMBER, LONGEST_TEXT, MOST_ENTRIES, exceeds_limits
from rljob_operator.core import begin
from tests.unit.core.worlds import REPLICAS, START, key, make_coordinator, make_failure, make_pod

STATUS, _ = begin(RLJobStatus(), REPLICAS, START)


def stated(**fields: object) -> CoordinatorStatus:
    return make_coordinator(STATUS, [make_pod(STATUS, key(Role.ACTOR), "u/0")], **fields)


def test_what_every_coordinator_states_is_taken() -> None:
    assert exceeds_limits(stated(failures=[make_failure(STATUS, key(Role.ACTOR), last_words="x" * 4096)])) is None


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (
            {"decision_id": "x" * (LONGEST_TEXT + 1)},
            f"decision_id: {LONGEST_TEXT + 1} characters, at most {LONGEST_TEXT}",
        ),
        ({"progress_age_seconds": math.nan}, "progress_age_seconds: no number that anything is counted with"),
        ({"progress_age_seconds": math.inf}, "progress_age_seconds: no number that anything is counted with"),
        ({"last_event": int(LARGEST_NUMBER) * 2}, "last_event: no number that anything is counted with"),
        ({"epoch": 10**400}, "epoch: no number that anything is counted with"),
    ],
    ids=["a name without end", "no number", "no end of it", "beyond what a float counts", "beyond any float"],
)
def test_what_cannot_be_so_is_named(fields: dict[str, object], problem: str) -> None:
    found = exceeds_limits(stated().model_copy(update=fields))
    assert found is not None
    assert found.startswith(problem)


def test_a_place_deep_within_is_named() -> None:
    status = stated()
    rank = status.pods[0].ranks[0].model_copy(update={"beat_age_seconds": -math.inf})
    pod = status.pods[0].model_copy(update={"ranks": [rank]})
    found = exceeds_limits(status.model_copy(update={"pods": [pod]}))
    assert found == "pods[0].ranks[0].beat_age_seconds: no number that anything is counted with"


def test_a_list_without_end_is_named_by_its_length() -> None:
    status = stated()
    found = exceeds_limits(status.model_copy(update={"pods": status.pods * (MOST_ENTRIES + 1)}))
    assert found == f"pods: {MOST_ENTRIES + 1} entries, at most {MOST_ENTRIES} are taken"


def test_texts_for_people_are_cut_and_names_are_counted_where_they_come_in() -> None:
    failure = make_failure(STATUS, key(Role.ACTOR), message="x" * 100_000)
    assert len(failure.message) == MOST_CHARACTERS
    text = (
        stated()
        .model_dump_json()
        .replace(
            '"rowsReady":{}', '"rowsReady":{' + ",".join(f'"{number}":1' for number in range(MOST_NAMES + 1)) + "}"
        )
    )
    with pytest.raises(ValueError, match=f"{MOST_NAMES + 1} names, at most {MOST_NAMES} are taken"):
        CoordinatorStatus.model_validate_json(text)
