"""What the status has of evaluations: the newest, in a line too, whatever the coordinator forgets."""

from dataclasses import replace

import pytest

from rljob_api.names import WeightVersion
from rljob_api.status import EvaluationStatus, RLJobStatus
from rljob_api.wire.observation import EvaluationObservation, SetFigure
from rljob_operator.core.progress import refresh
from rljob_operator.kube.status_writer import decisive
from tests.unit.core.worlds import START, make_running, with_coordinator


def observation(version: int, **means: float) -> EvaluationObservation:
    sets = [SetFigure(name=name, metric="mean@8", value=value) for name, value in means.items()]
    return EvaluationObservation(version=WeightVersion(version), sets=sets)


def refreshed(before: EvaluationStatus | None, seen: EvaluationObservation | None, published: int) -> RLJobStatus:
    observed = with_coordinator(make_running(), evaluation=seen, published=WeightVersion(published))
    observed = replace(observed, status=observed.status.model_copy(update={"evaluation": before}))
    return refresh(observed, observed.status, START + 5)


@pytest.mark.parametrize(
    ("seen", "step", "summary"),
    [
        pytest.param(observation(40, gsm8k=0.62), 39, "gsm8k 0.62 @ 40", id="one set"),
        pytest.param(observation(40, gsm8k=0.62, aime=0.1), 39, "gsm8k 0.62, aime 0.10 @ 40", id="two sets"),
        pytest.param(observation(0, gsm8k=1.0), None, "gsm8k 1.00 @ 0", id="the first weights, of no step"),
        pytest.param(observation(40), 39, "no score @ 40", id="no answer was scored"),
    ],
)
def test_the_newest_evaluation(seen: EvaluationObservation, step: int | None, summary: str) -> None:
    found = refreshed(None, seen, published=40).evaluation
    assert found is not None
    assert (found.version, found.step, found.summary) == (seen.version, step, summary)
    assert [(one.name, one.metric, one.value) for one in found.sets] == [
        (one.name, one.metric, one.value) for one in seen.sets
    ]


def test_a_status_has_four_digits() -> None:
    found = refreshed(None, observation(4, a=0.123456), published=4).evaluation
    assert found is not None
    assert found.sets[0].value == 0.1235


@pytest.mark.parametrize(
    ("published", "stays"),
    [
        pytest.param(40, True, id="a coordinator that began anew"),
        pytest.param(39, False, id="a restore took the version back"),
    ],
)
def test_what_a_coordinator_does_not_know_stays_while_its_version_does(published: int, stays: bool) -> None:
    before = EvaluationStatus(version=40, step=39, summary="gsm8k 0.62 @ 40")
    assert refreshed(before, None, published).evaluation == (before if stays else None)


def test_a_status_without_the_field_is_read_and_it_is_progress() -> None:
    """What earlier versions have written; and no write of it is urgent."""
    assert RLJobStatus.model_validate({}).evaluation is None
    status = RLJobStatus(evaluation=EvaluationStatus(version=40))
    assert decisive(status) == decisive(RLJobStatus())
