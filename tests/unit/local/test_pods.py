"""What the core may know of pods that no parent has forked yet."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

from rljob_api.names import Role
from rljob_api.wire.identity import PodKey
from rljob_api.wire.processes import Preloads
from rljob_operator.local.pods import IMPORTS, Pods
from rljob_operator.local.run_folder import RunFolder


def test_a_pod_waits_for_the_imports_of_its_parent_and_states_it() -> None:
    folder = cast(RunFolder, SimpleNamespace(manifest=Path("job.json"), endpoints=Path("endpoints.json")))
    pods = Pods(folder, {}, lambda: None, Preloads())
    pods.create(PodKey(role=Role.ACTOR, replica=0))
    assert [fact.last_message for fact in pods.facts()] == [IMPORTS]

    pods.parent_ready_at = 1.0
    assert [fact.last_message for fact in pods.facts()] == [""]
