"""The audit finds what it is there to find."""

from dataclasses import replace

import pytest

from rljob_api.spec import RLJobSpec
from rljob_cli.jobs.sample_log import RedrawnGroups, SampleLine, audit, standing_samples

SPEC = RLJobSpec.model_validate(
    {
        "model": {"config": {}},
        "data": {"prompts": "p.jsonl"},
        "rollout": {"numRollouts": 3, "batchSize": 2, "samplesPerPrompt": 2, "maxStaleness": 1},
        "training": {"globalBatchSize": 4, "microBatchSize": 4},
    }
)


def make_line(step: int = 0, group: int = 0, index: int = 0, epoch: int = 1) -> SampleLine:
    return SampleLine(f"train_{step}", group, index, step, step, epoch, 0, 1.0)


def make_log(steps: range, epoch: int = 1) -> list[SampleLine]:
    return [make_line(step, group, index, epoch) for step in steps for group in range(2) for index in range(2)]


def test_a_clean_run_has_no_problem() -> None:
    report = audit(make_log(range(3)), SPEC, steps=3)
    assert (report.problems, report.lines, report.voided, report.steps) == ([], 12, 0, 3)


def test_steps_that_a_later_epoch_trained_again_are_void() -> None:
    log = make_log(range(2), epoch=1) + make_log(range(1, 3), epoch=2)
    report = audit(log, SPEC, steps=3)
    assert (report.problems, report.voided) == ([], 4)


def test_a_half_trained_step_is_void_once_it_is_trained_again() -> None:
    log = make_log(range(1)) + make_log(range(1, 2))[:1] + make_log(range(1, 3), epoch=2)
    assert audit(log, SPEC, steps=3).problems == []


def test_an_epoch_between_voids_only_what_came_before_it() -> None:
    log = make_log(range(3), epoch=1) + make_log(range(2, 3), epoch=2) + make_log(range(1, 3), epoch=3)
    retained = standing_samples(log)
    assert sorted({(line.epoch, line.step) for line in retained}) == [(1, 0), (3, 1), (3, 2)]


@pytest.mark.parametrize(
    ("log", "sentence"),
    [
        pytest.param(
            make_log(range(3))[1:],
            "1 samples were never trained, e.g. train_0 group 0 index 0 pass 0.",
            id="a missing sample is named",
        ),
        pytest.param(
            [*make_log(range(3)), make_line(2)],
            "1 samples were trained more than once, e.g. train_2 group 0 index 0 pass 0.",
            id="a doubled sample is named",
        ),
        pytest.param(
            [*make_log(range(3))[:-1], replace(make_line(2, 1, 1), weight_version=0)],
            "1 samples are staler than rollout.maxStaleness 1; the worst is train_2 group 1, made by version 0.",
            id="a stale sample is named",
        ),
        pytest.param(
            [*make_log(range(3))[:-1], replace(make_line(2, 1, 1), weight_version=3)],
            "1 samples were made by a version that did not exist before their training.",
            id="a sample from the future is named",
        ),
    ],
)
def test_a_broken_promise_is_named(log: list[SampleLine], sentence: str) -> None:
    assert audit(log, SPEC, steps=3).problems == [sentence]


def test_groups_that_a_filter_has_seen_are_counted_once_and_those_drawn_most_often_are_named() -> None:
    draws = {(0, 0): (3, False), (1, 1): (4, True), (2, 0): (1, False), (2, 1): (2, False)}

    def of_filter(line: SampleLine) -> SampleLine:
        count, refused = draws.get((line.step, line.group), (0, False))  # 0: before the job had a filter
        return replace(line, draws=count, last_draw_refused=refused)

    log = [*make_log(range(2, 3), epoch=1), *map(of_filter, make_log(range(3), epoch=2))]
    report = audit([*log, *(replace(line, pass_index=1) for line in log)], SPEC, steps=3)
    assert report.redrawn == RedrawnGroups(
        groups=3,
        draws=2 + 3 + 1,
        last_refused=1,
        examples=["train_1 group 1, drawn 4 times", "train_0 group 0, drawn 3 times", "train_2 group 1, drawn 2 times"],
    )


def test_a_run_without_a_filter_has_redrawn_nothing() -> None:
    assert audit(make_log(range(3)), SPEC, steps=3).redrawn == RedrawnGroups(0, 0, 0, [])
