"""The processes of a pod in the status: its engines, and the process id of engine 0 apart."""

import pytest

from rljob_api.names import Role
from rljob_api.wire.launchers import EngineProcess, EngineState
from rljob_operator.core import decide
from tests.unit.core.worlds import START, key, make_running, with_coordinator

NOW = START + 10


def engine(index: int) -> EngineProcess:
    return EngineProcess(
        index=index, pid=70 + index, incarnation=f"{index:012x}", url="http://127.0.0.1:1", state=EngineState.RUNNING
    )


@pytest.mark.parametrize(
    ("indices", "first"),
    [
        pytest.param([], None, id="no engine"),
        pytest.param([0], 70, id="one"),
        pytest.param([0, 1], 70, id="two"),
        pytest.param([1], None, id="only the second was started yet"),
    ],
)
def test_engines_of_a_pod(indices: list[int], first: int | None) -> None:
    observed = make_running()
    assert observed.coordinator is not None
    pods = [
        seen.model_copy(update={"engines": [engine(index) for index in indices]})
        if seen.pod == key(Role.ROLLOUT)
        else seen
        for seen in observed.coordinator.pods
    ]
    status = decide(with_coordinator(observed, pods=pods), NOW).status
    pod, other = next(role for role in status.roles if role.name is Role.ROLLOUT).pods[:2]
    assert [(each.engine, each.pid) for each in pod.engines] == [(index, 70 + index) for index in indices]
    assert pod.engine_pid == first
    assert (other.engines, other.engine_pid) == ([], None)
