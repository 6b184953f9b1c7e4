"""Tries a job's reward.

The trial is a process of its own with the user's rights, since the user's code may import torch, hang or die.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rljob_cli.checks.findings import Finding, problem, unchecked, warning

if TYPE_CHECKING:
    from rljob_api.spec import RLJobSpec
    from rljob_api.spec.rollout import RewardSpec, SummedRewardSpec


FEW_ROWS = 2
"""A check tries so many: a reward may cost money."""


IMPORT_SECONDS = 120
"""For a module to be imported, torch included, on a busy machine."""


TRIED = ("spec.rollout.reward", "spec.rollout.samplesPerPrompt", "spec.data")
"""Fields that a trial reads."""


_TAIL = 400


@dataclass(frozen=True, slots=True)
class Trial:
    """The trial's result."""

    problem: str | None
    """A sentence: it cannot be loaded, or would end the job at once."""
    rows: tuple[dict[str, Any], ...] = ()
    """{"row", "prompt", "answers": [{"what", "response", "reward", "metrics", "error", "isMissing"}]}"""
    printed: str = ""
    """Lines that the user's code printed."""

    @property
    def answers(self) -> list[dict[str, Any]]:
        """Answers of all rows."""
        return [answer for row in self.rows for answer in row["answers"]]


def try_reward(spec: RLJobSpec, rows: int) -> Trial:
    """Tries the reward of a job with absolute paths. With 0 rows it is loaded and not called."""
    functions = spec.rollout.reward.functions
    # Functions are called side by side.
    limit = IMPORT_SECONDS + rows * max((one.timeout_seconds for one in functions.values()), default=0)
    asked = json.dumps({"spec": spec.model_dump(mode="json"), "rows": rows})
    command = [sys.executable, "-m", "rljob_workers.rewards.trial"]
    field, name = field_of(spec), name_of(spec)
    ended = _end_of(command, asked.encode(), limit)
    if ended is None:
        return Trial(f"{field}: {name} was not loaded and tried within {limit} s. Find out what it waits for.")
    printed = ended.errors.decode(errors="replace").strip()
    if ended.code or not ended.output:
        how = f"signal {-ended.code}" if ended.code < 0 else f"exit code {ended.code}"
        return Trial(
            f"{field}: {name} ended its process with {how}: {printed[-_TAIL:]}. It would end the rollout's, too."
        )
    answer = json.loads(ended.output)
    cause = answer["problem"]
    return Trial(None if cause is None else f"spec.{cause}", tuple(answer["rows"]), printed)


@dataclass(frozen=True, slots=True)
class _End:
    code: int
    output: bytes
    errors: bytes


def _end_of(command: Sequence[str], asked: bytes, seconds: float) -> _End | None:
    """End of a process that ends its own; None where it takes too long, and is ended.

    Files take what it writes: the end of a pipe would come when the last of its helpers closes it.
    """
    with (
        tempfile.TemporaryFile() as question,
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as errors,
    ):
        question.write(asked)
        question.seek(0)
        process = subprocess.Popen(command, stdin=question, stdout=output, stderr=errors, start_new_session=True)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.returncode is None:  # also after an interrupt
                process.terminate()
                process.wait()
        output.seek(0)
        errors.seek(0)
        return _End(code, output.read(), errors.read())


def package_findings(spec: RLJobSpec, *, is_elsewhere: bool) -> Iterator[Finding]:
    """Packages that the job's rewards need and this machine lacks."""
    reward = spec.rollout.reward
    parts: dict[str, RewardSpec | SummedRewardSpec] = {
        "": reward,
        **{f".sum[{place}]": part for place, part in enumerate(reward.sum or ())},
    }
    for place, part in parts.items():
        if part.math_verify is not None and find_spec("math_verify") is None:
            yield (unchecked if is_elsewhere else problem)(
                f"spec.rollout.reward{place}.mathVerify: needs the package math-verify, which is not installed here."
                " Install it: pip install 'rljob[math]'."
            )


def trial_findings(spec: RLJobSpec, rows: int = FEW_ROWS) -> Iterator[Finding]:
    """Tries a reward of the user's; those that come with the product need no trial."""
    if spec.rollout.reward.functions:
        yield from findings_of(try_reward(spec, rows), field_of(spec), name_of(spec))


def field_of(spec: RLJobSpec) -> str:
    """Where the reward of a job is given, for sentences about all of it."""
    fields = list(spec.rollout.reward.functions)
    return f"spec.{fields[0]}.function" if len(fields) == 1 else "spec.rollout.reward"


def name_of(spec: RLJobSpec) -> str:
    """The user's functions."""
    return " and ".join(one.function for one in spec.rollout.reward.functions.values()) or "the reward"


def findings_of(trial: Trial, field: str, name: str) -> Iterator[Finding]:
    """A failure of every call is one of the reward; a single one may be one of an answer that no model gives.

    To give no score is allowed: for these rows, or these answers, there may be none.
    """
    if trial.problem is not None:
        yield problem(trial.problem)
        return
    answers = trial.answers
    failed = [answer["error"] for answer in answers if answer["error"] is not None]
    missing = [answer["error"] for answer in answers if answer["isMissing"]]
    count = f"all {len(answers)}" if len(failed) == len(answers) else f"{len(failed)} of {len(answers)}"
    if failed:
        is_of_the_reward = len(failed) == len(answers) and not missing
        text = f"spec.{_ended(failed[0])} So it was with {count} answers that were tried: see `rljob reward`."
        yield (problem if is_of_the_reward else warning)(text)
    elif len(answers) > 1 and len({answer["reward"] for answer in answers}) == 1:
        same = f"{answers[0]['reward']:g}"
        yield warning(
            f"{field}: {name} gives {same} to all {len(answers)} answers that were tried, right and wrong ones: where"
            " all samples of a prompt are worth the same nothing is learnt. See `rljob reward`."
        )


def _ended(text: str) -> str:
    """An exception's own text may lack the full stop."""
    return text if text.endswith((".", "!", "?")) else f"{text}."
