"""What another version of the operator or of a worker wrote is read, and kept where it is written again."""

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import ValidationError

from rljob_api.generate.crd import crd
from rljob_api.names import Epoch
from rljob_api.spec import RLJob
from rljob_api.status import ConditionType, Phase, PodStatus, RLJobStatus
from rljob_api.wire.epochs import DesiredState
from rljob_api.wire.failures import Failure, FailureKind
from rljob_api.wire.launchers import LauncherPoll
from rljob_api.wire.observation import CoordinatorEvent, EventKind, PodObservation
from rljob_operator.core.conditions import is_true, terminal, with_condition
from rljob_operator.kube.status_writer import merge_patch
from tests.unit.api.manifests import GOOD
from tests.unit.core.cluster import make_cluster

NEWER: dict[str, Any] = {
    "phase": "Rebalancing",
    "frontier": {"x": 1},
    "conditions": [
        {
            "type": "Succeeded",
            "status": "True",
            "reason": "Succeeded",
            "message": "all is trained",
            "lastTransitionTime": "2026-11-22T10:00:00Z",
            "severity": "None",
        },
        {
            "type": "Rebalanced",
            "status": "True",
            "reason": "Moved",
            "message": "ranks moved",
            "lastTransitionTime": "2026-11-22T10:00:00Z",
            "observedGeneration": 2,
        },
    ],
    "roles": [
        {
            "name": "actor",
            "replicas": 1,
            "ready": 1,
            "failures": 0,
            "gangs": 1,
            "pods": [{"name": "actor-0", "ready": True, "generation": 3, "engines": [{"pid": 5}]}],
        }
    ],
    "restart": {"epoch": 4, "level": "Gang"},
    "training": {"step": 9, "flops": 0.4},
    "scaling": {"replicas": 1, "forecast": "none"},
    "infrastructure": [{"name": "control", "restarts": 1, "zone": "a"}],
}


def test_an_unknown_phase_condition_or_field_hides_nothing_of_a_status() -> None:
    status = RLJobStatus.model_validate(NEWER)

    ended = terminal(status)
    assert ended is not None
    assert ended.type is ConditionType.SUCCEEDED
    assert status.restart.epoch == 4
    assert status.phase == "Rebalancing"


def test_known_reasons_are_read_as_such() -> None:
    assert RLJobStatus.model_validate({"phase": "Running"}).phase is Phase.RUNNING


def test_what_is_not_known_is_written_again() -> None:
    written = RLJobStatus.model_validate(NEWER).model_dump(mode="json", exclude_unset=True)

    assert written == NEWER


def test_a_turn_keeps_what_another_version_knows() -> None:
    world = make_cluster()
    world.settle()
    known = json.loads(world.status.model_dump_json())
    known["conditions"].append(NEWER["conditions"][1])
    known["conditions"][0]["severity"] = "Info"
    for part, field in (("training", "flops"), ("scaling", "forecast"), ("restart", "level")):
        known[part][field] = "kept"
    known["roles"][0]["pods"][0]["devices"] = known["roles"][0]["gangs"] = known["frontier"] = ["kept"]
    world.status = RLJobStatus.model_validate(known)

    world.turn()

    written = json.loads(world.status.model_dump_json())
    assert NEWER["conditions"][1] in written["conditions"]
    assert any(condition.get("severity") == "Info" for condition in written["conditions"])
    assert (written["training"]["flops"], written["scaling"]["forecast"], written["restart"]["level"]) == (
        "kept",
        "kept",
        "kept",
    )
    role = written["roles"][0]
    assert role["pods"][0]["devices"] == role["gangs"] == written["frontier"] == ["kept"]
    assert is_true(world.status, ConditionType.READY)


LATER_NAMES = {"life": "incarnation", "lostLife": "lostIncarnation", "decisionId": "epochId"}
"""Of the status: name as it is written -> name that the next release may write."""


def respelled(value: Any, names: Mapping[str, str]) -> Any:
    """With these names of fields in place of others, at any depth."""
    if isinstance(value, list):
        return [respelled(each, names) for each in value]
    if not isinstance(value, dict):
        return value
    return {names.get(name, name): respelled(each, names) for name, each in value.items()}


def test_a_status_in_later_names_is_read_alike_and_written_in_those_that_release_0_2_0_reads() -> None:
    """The next release may write them: after a rollback to this one nothing is restarted, and nothing is left over."""
    world = make_cluster()
    world.settle()
    known = json.loads(world.status.model_dump_json())
    known["roles"][0]["pods"][0]["lostLife"] = "earlier/0"
    later = respelled(known, LATER_NAMES)
    assert respelled(later, {new: old for old, new in LATER_NAMES.items()}) == known != later
    read = world.status = RLJobStatus.model_validate(later)
    assert read == RLJobStatus.model_validate(known)

    world.turn()

    assert world.status.restart == read.restart
    written = json.loads(world.status.model_dump_json())
    assert respelled(written, LATER_NAMES) != written
    assert not set(LATER_NAMES.values()).intersection(re.findall(r'"(\w+)":', json.dumps(written)))
    patch = merge_patch(later, written)
    assert patch["restart"] == {"decisionId": read.restart.decision_id, "epochId": None}


def test_of_both_names_that_of_this_release_counts() -> None:
    pod = PodStatus.model_validate(
        {"name": "actor-0", "ready": True, "generation": 0, "life": "a/1", "incarnation": "a/0"}
    )
    assert (pod.incarnation, json.loads(pod.model_dump_json())["life"]) == ("a/1", "a/1")


def test_the_api_server_keeps_names_that_the_definition_lacks_where_fields_get_others() -> None:
    status = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    pod = status["roles"]["items"]["properties"]["pods"]["items"]
    assert (
        pod["x-kubernetes-preserve-unknown-fields"] is status["restart"]["x-kubernetes-preserve-unknown-fields"] is True
    )


def test_a_condition_that_changes_keeps_its_unknown_fields() -> None:
    status = RLJobStatus.model_validate(NEWER)
    changed = with_condition(status, ConditionType.SUCCEEDED, 0.0, true=False, reason="Not", message="not yet")

    assert next(c for c in changed.model_dump()["conditions"] if c["type"] == "Succeeded")["severity"] == "None"


@pytest.mark.parametrize(
    "status",
    [
        pytest.param({"restart": {"epoch": "many"}}, id="a number that is none"),
        pytest.param({"roles": [{**NEWER["roles"][0], "name": "judge"}]}, id="a role of a later version"),
        pytest.param({"conditions": [{"type": "Ready"}]}, id="a condition without its status"),
    ],
)
def test_a_status_that_cannot_be_understood_is_no_empty_one(status: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RLJobStatus.model_validate(status)


def test_messages_are_read_without_what_is_not_known() -> None:
    order = {"pod": {"role": "actor", "replica": 0, "gang": 1}, "epoch": 2, "gangGeneration": 7}
    desired = DesiredState.model_validate({"epoch": 2, "pods": [order], "replicas": {"actor": 1}, "topology": {}})

    assert desired.pods[0].epoch == Epoch(2)
    assert "topology" not in desired.model_dump()


def test_kinds_of_a_later_version_are_plain_text() -> None:
    event = {"id": 1, "kind": "GangLevelled", "at": 0.0, "epoch": 1, "message": "m"}
    failure = {"id": "f", "kind": "CollectiveBroken", "pod": {"role": "actor", "replica": 0}, "epoch": 1}

    assert CoordinatorEvent.model_validate(event).kind == "GangLevelled"
    assert CoordinatorEvent.model_validate({**event, "kind": "RowsLost"}).kind is EventKind.ROWS_LOST
    assert Failure.model_validate({**failure, "message": "m", "at": 0.0}).kind == "CollectiveBroken"
    assert Failure.model_validate({**failure, "message": "m", "at": 0.0, "kind": "Hang"}).kind is FailureKind.HANG


ENGINE: dict[str, Any] = {"pid": 7, "incarnation": "0123456789ab", "url": "http://127.0.0.1:1", "state": "Running"}


@pytest.mark.parametrize(
    ("sent", "indices"),
    [
        pytest.param({"engine": None, "engines": []}, [], id="none"),
        pytest.param({"engine": ENGINE | {"pid": 1}, "engines": [ENGINE]}, [0], id="the list counts"),
        pytest.param({"engine": ENGINE, "engines": [ENGINE, ENGINE | {"index": 1, "pid": 8}]}, [0, 1], id="several"),
        pytest.param({"engine": None, "engines": [ENGINE | {"index": 1}]}, [1], id="only the second runs"),
    ],
)
@pytest.mark.parametrize("kind", [LauncherPoll, PodObservation])
def test_engines_are_read_from_a_message_of_0_2_0_which_names_engine_0_beside_them(
    kind: type[LauncherPoll | PodObservation], sent: dict[str, Any], indices: list[int]
) -> None:
    pod: dict[str, Any] = {"pod": {"role": "rollout", "replica": 0}, "podUid": "u", "launcher": "l", "launcherPid": 1}
    counts: dict[str, Any] = {"containerRestartCount": 0, "pollAgeSeconds": 0.0, "processes": []}
    message = kind.model_validate({**pod, **counts, "carried": None, "ranks": [], **sent})
    assert [engine.index for engine in message.engines] == indices

    assert kind.model_validate_json(message.model_dump_json()) == message


def test_a_job_is_sent_without_its_defaults_and_arrives_whole() -> None:
    job = RLJob.model_validate(GOOD)
    sent = job.model_dump_json(exclude_defaults=True)

    assert RLJob.model_validate_json(sent) == job
    assert "restartPolicy" not in json.loads(sent)["spec"]
