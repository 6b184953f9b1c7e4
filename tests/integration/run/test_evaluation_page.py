"""The manifest of docs/evaluation.md in a whole job: its sets are evaluated every 20 steps, and at both ends."""

import json
import re
from pathlib import Path

import pytest
import yaml

from .job import RunningJob, make_manifest

PAGE = Path(__file__).parents[3] / "docs/evaluation.md"

pytestmark = pytest.mark.long


def test_the_sets_of_the_page_are_evaluated_every_twenty_steps(tmp_path: Path) -> None:
    block = re.search(r"^```yaml\n(spec:.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert block is not None
    evaluation = yaml.safe_load(block[1])["spec"]["evaluation"]
    assert evaluation["everySteps"] == 20
    (tmp_path / "data").mkdir()
    lines = [{"prompt": f"{n}{n}=", "label": f"{n}{n}", "topic": ("low", "high")[n > 4]} for n in range(10)]
    (tmp_path / "data/held-out.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    manifest = make_manifest(tmp_path, rollout={"numRollouts": 45, "reward": {"characterMatch": {}}})
    manifest["spec"]["evaluation"] = evaluation
    with RunningJob(tmp_path, manifest) as job:
        job.assert_succeeded(epochs=1)
        rows = [json.loads(line) for line in (job.out / "evaluations.jsonl").read_text().splitlines()]
        messages = [event["message"] for event in job.events() if event["reason"] == "Evaluated"]
    assert [row["version"] for row in rows] == [0, 20, 40, 45]
    for row, message in zip(rows, messages, strict=True):
        assert message.startswith(
            f"Version {row['version']} was evaluated: held-out mean@8 {row['eval/held-out/mean@8']:.4f}"
        )
        low, high = (row[f"eval/held-out/{topic}/mean@8"] for topic in ("low", "high"))
        assert row["eval/held-out/mean@8"] == pytest.approx((low + high) / 2)
        assert {f"eval/held-out/pass@{k}" for k in (1, 2, 4, 8)} <= row.keys()
        assert row["eval/held-out/samples"] == 80
        assert row["eval/greedy/samples"] == 10
