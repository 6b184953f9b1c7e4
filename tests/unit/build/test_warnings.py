"""A user learns what the loss of a node or pod will cost."""

from typing import Any

import pytest

from rljob_operator.build import warnings
from tests.unit.build.jobs import changed, quickstart

_SHARED = {"volume": {"accessMode": "ReadWriteMany"}}


def _run(source: dict[str, Any]) -> dict[str, Any]:
    return {"roles": {"actor": {"template": {"spec": {"volumes": [{"name": "run", **source}]}}}}}


@pytest.mark.parametrize(
    ("fields", "starts"),
    [
        pytest.param({"checkpoint": _SHARED}, [], id="shared storage and a claim: nothing to say"),
        pytest.param({}, ["checkpoint.volume.accessMode: ReadWriteOnce is not shared storage."], id="one node"),
        pytest.param(
            {"checkpoint": {"volume": {"claimName": "mine"}}},
            ["checkpoint.volume.accessMode: ReadWriteOnce is not shared storage."],
            id="a claim of the user's for one node",
        ),
        pytest.param(
            {"algorithm": {"advantage": "Gae"}, "roles": {"critic": {}}},
            [
                "checkpoint.volume.accessMode: ReadWriteOnce is not shared storage. Actor, critic and coordinator share"
                " a node,"
            ],
            id="a critic on the same node",
        ),
        pytest.param(_run({"nfs": {"server": "s", "path": "/"}}), [], id="a shared volume by the template"),
        pytest.param(
            _run({"hostPath": {"path": "/disk"}}),
            ["roles.actor.template.spec.volumes[run]: hostPath is the node's own disk"],
            id="a node's disk by the template",
        ),
        pytest.param(
            {"checkpoint": {**_SHARED, "path": "/elsewhere"}},
            ["checkpoint.path: /elsewhere is not on the checkpoint volume"],
            id="checkpoints beside the volume",
        ),
        pytest.param(
            {"checkpoint": {**_SHARED, "path": "../up"}},
            ["checkpoint.path: ../up is not on the checkpoint volume"],
            id="checkpoints above the volume",
        ),
        pytest.param(
            {"checkpoint": {**_SHARED, "path": "/var/lib/rljob/here"}}, [], id="an absolute path on the volume"
        ),
        pytest.param({"checkpoint": {**_SHARED, "path": "deeper/down"}}, [], id="a relative path"),
        pytest.param(
            {"checkpoint": _SHARED, "transferQueue": {"redis": {"persistence": {"kind": "EmptyDir"}}}},
            ["transferQueue.redis.persistence.kind: EmptyDir goes with its pod"],
            id="control state that goes with its pod",
        ),
    ],
)
def test_warnings(fields: dict[str, Any], starts: list[str]) -> None:
    found = warnings(changed(quickstart(), **fields))
    assert len(found) == len(starts), found
    assert all(sentence.startswith(start) for sentence, start in zip(found, starts, strict=True)), found
