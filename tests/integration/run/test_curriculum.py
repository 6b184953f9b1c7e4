"""A curriculum chooses rows by lot: each draw is of one row all the same, whatever dies, and rates are never lost."""

import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rljob_cli.jobs.sample_log import read_lines, standing_samples

from .job import HURRY, RunningJob, kill, make_simulated

ROLLOUTS = 14

GROUPS = 8

PASSING = 50
"""Rows from here on pass: the reward is the row, in hundredths."""

NOTHING: dict[str, Any] = {"chosen": [], "rates": []}
"""Of the checkpoint of before the first draw."""

OWN = f"""
import json, os, random, time
from pathlib import Path

here = Path(__file__).parent

def score(answers):
    until = time.monotonic() + 1.0
    while time.monotonic() < until and not (here / "{HURRY}").exists():
        time.sleep(0.02)
    return [int(answer.label) / 100 for answer in answers]

def unsolved(rates, draws):
    open_rows = [row for row in range(len(rates)) if rates.pass_rate[row] != 1]
    rows = [random.choice(open_rows) for _ in draws]
    call = {{"pid": os.getpid(), "draws": list(draws), "rows": rows, "samples": rates.samples.tolist()}}
    with (here / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps(call) + "\\n")
    return rows

def raises(rates, draws):
    raise KeyError("difficulty")
"""


def make_job(folder: Path, function: str = "unsolved") -> dict[str, Any]:
    (folder / "lots.py").write_text(OWN)
    return make_simulated(
        folder,
        rollout={
            "numRollouts": ROLLOUTS,
            "reward": {"custom": {"function": "lots:score", "path": str(folder)}},
            "curriculum": {"function": f"lots:{function}", "path": str(folder), "passReward": PASSING / 100},
        },
        roles={"reference": {}, "actorFwd": {}, "advantages": {}, "rollout": {"replicas": 2}},
        checkpoint={"everySteps": 1, "keep": 2 * ROLLOUTS},
    )


def tables(job: RunningJob) -> dict[str, dict[str, Any]]:
    """What each checkpoint says of the curriculum, by version; where two epochs made one of a version, the later's."""
    found = []
    for path in (job.out / "checkpoints").glob("*/tickets.json"):
        if name := re.fullmatch(r"(\d+)-e(\d+)-[0-9a-f]+", path.parent.name):  # others are being written
            found.append((int(name[1]), int(name[2]), path))
    return {
        str(version): json.loads(path.read_bytes()).get("curriculum", NOTHING) for version, _, path in sorted(found)
    }


def opened(job: RunningJob) -> list[int]:
    """The version that each epoch went on from."""
    messages = [event["message"] for event in job.events() if event["reason"] == "EpochOpened"]
    return [int(found[1]) for message in messages if (found := re.search(r"from version (\d+),", message))]


def recorded(job: RunningJob) -> str:
    """Version of the checkpoint that the job goes on from."""
    return str(json.loads((job.out / "checkpoints" / "record.json").read_bytes())["id"]["version"])


def samples(table: dict[str, Any]) -> dict[int, int]:
    return {row: scored for row, _, scored, _, _ in table["rates"]}


@pytest.mark.long  # choices and rates over deaths are the queue's tests, too
def test_each_draw_is_of_one_row_whatever_dies_and_a_job_without_its_queue_goes_on_with_the_rates(
    tmp_path: Path,
) -> None:
    with RunningJob(tmp_path, make_job(tmp_path)) as job:
        job.wait_for_step(2)
        kill(job.rank_pid("rollout"))
        job.wait_for_event("RankExited", role="rollout", scope="Global")
        job.wait_for("its second epoch", lambda: len(opened(job)) == 2)
        job.wait_for_step(opened(job)[1])  # one of this epoch
        kill(job.process.pid)
        job.process.wait(240)
        job.wait_gone()
        before = tables(job)[recorded(job)]
        first = calls(tmp_path)
        shutil.rmtree(job.out / "redis")
        job.start()
        job.assert_succeeded()
        job.assert_epoch(3)

        known: dict[int, int] = {}
        for table in tables(job).values():
            assert all(known.setdefault(draw, row) == row for draw, row in table["chosen"])
        lines = standing_samples(read_lines(job.out / "samples.jsonl"))
        trained = Counter(row for _, _, row in {(line.step, line.group, round(line.reward * 100)) for line in lines})
        assert trained == Counter(known[draw] for draw in range(ROLLOUTS * GROUPS))

        for call in calls(tmp_path):
            assert all(row < PASSING or not call["samples"][row] for row in call["rows"])
        resumed = calls(tmp_path)[len(first)]
        assert resumed["pid"] not in {call["pid"] for call in first}
        assert samples(before)
        assert all(resumed["samples"][row] >= scored for row, scored in samples(before).items())
        last = tables(job)[str(ROLLOUTS)]
        assert sum(samples(last).values()) >= ROLLOUTS * GROUPS * 4  # more where a group was generated again
        for row, draws, scored, passed, total in last["rates"]:
            assert scored == 4 * draws
            assert passed == (scored if row >= PASSING else 0)
            assert abs(total - scored * row / 100) < 1e-9


def calls(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "calls.jsonl").read_text().splitlines()]


def test_a_curriculum_that_raises_fails_the_job_with_its_name(tmp_path: Path) -> None:
    with RunningJob(tmp_path, make_job(tmp_path, "raises")) as job:
        assert ": rollout.curriculum.function: lots:raises raised KeyError on draws " in job.refused()[0]
