"""Flags of SGLang that jobs may have: which of them a manifest is warned of."""

import pytest

from rljob_api.spec import RLJobSpec
from rljob_cli.checks.engine_flags import engine_flag_findings
from tests.unit.api.manifests import changed

PENALTY = '{"repetition_penalty": 1.1}'


@pytest.mark.parametrize(
    ("args", "is_warned"),
    [
        pytest.param(["--preferred-sampling-params", PENALTY], True, id="a penalty"),
        pytest.param([f"--preferred-sampling-params={PENALTY}"], True, id="a penalty in the same argument"),
        pytest.param(["--sampling-defaults", "model"], False, id="defaults of a file that has ends alone"),
        pytest.param(["--preferred-sampling-params-x"], False, id="another flag"),
        pytest.param(["--mem-fraction-static", "0.8"], False, id="memory"),
    ],
)
def test_flags_that_change_how_tokens_are_drawn_are_warned_of(args: list[str], is_warned: bool) -> None:
    spec = RLJobSpec.model_validate(
        changed({"spec.roles.rollout": {"engine": {"kind": "SGLang", "args": args}}})["spec"]
    )
    texts = [finding.text for finding in engine_flag_findings(spec)]
    assert len(texts) == is_warned
    assert all("--preferred-sampling-params adds" in text for text in texts)
