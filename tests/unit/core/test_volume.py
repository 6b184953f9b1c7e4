"""What is said of a checkpoint volume that is to be larger."""

from dataclasses import replace

import pytest

from rljob_api.status import ConditionType, RLJobStatus
from rljob_operator.core import Observed, VolumeFact
from rljob_operator.core.conditions import find
from rljob_operator.core.derived_status import with_volume
from tests.unit.core.worlds import START, make_running

WELL = VolumeFact("job-checkpoints", wanted="20Gi", size="20Gi", capacity="20Gi", is_large_enough=True)
SMALL = replace(WELL, capacity="10Gi", is_large_enough=False)
REFUSED = replace(WELL, size="10Gi", capacity="10Gi", refusal="only dynamically provisioned pvc can be resized")

ROWS = [
    pytest.param([WELL], None, id="a volume that was never too small"),
    pytest.param([replace(WELL, capacity=None, is_large_enough=False)], None, id="a claim without a volume yet"),
    pytest.param([None], None, id="a claim of the user's"),
    pytest.param(
        [SMALL],
        ("False", "Expanding", "the volume of the claim job-checkpoints has 10Gi, and is to have 20Gi"),
        id="it grows",
    ),
    pytest.param(
        [replace(SMALL, platform_message="waiting for a pod to mount it")],
        (
            "False",
            "Expanding",
            "the volume of the claim job-checkpoints has 10Gi, and is to have 20Gi: waiting for a pod to mount it",
        ),
        id="it waits for something",
    ),
    pytest.param(
        [SMALL, WELL], ("True", "Expanded", "the volume of the claim job-checkpoints has 20Gi"), id="it has grown"
    ),
    pytest.param(
        [REFUSED],
        (
            "False",
            "ExpansionRefused",
            "checkpoint.volume.size: the claim job-checkpoints stays at 10Gi, since the API server refuses 20Gi: only "
            "dynamically provisioned pvc can be resized. It is asked for again every minute, and the job goes on; its "
            "storage class has to have allowVolumeExpansion",
        ),
        id="it may not",
    ),
    pytest.param(
        [REFUSED, SMALL, WELL],
        ("True", "Expanded", "the volume of the claim job-checkpoints has 20Gi"),
        id="it may in the end",
    ),
]


@pytest.mark.parametrize(("facts", "expected"), ROWS)
def test_volume(facts: list[VolumeFact | None], expected: tuple[str, str, str] | None) -> None:
    observed: Observed = make_running()
    status: RLJobStatus = observed.status
    for fact in facts:
        status = with_volume(replace(observed, volume=fact), status, START)
    found = find(status, ConditionType.VOLUME_EXPANDED)
    assert (found and (found.status, found.reason, found.message)) == expected
