"""A checkpoint is evaluated on this machine: the engines it is asked with, and the process that has them answer.

A process of the workers starts engines and scores, since the command line has neither torch nor an engine. It is ended
with the command.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pydantic import ValidationError

from rljob_api.machine.devices import machine_devices
from rljob_api.names import EXIT_BAD_MANIFEST, EXIT_FAILED
from rljob_api.roles import TICKET_ROLE
from rljob_api.spec import RLJob
from rljob_api.spec.roles import RolesSpec
from rljob_api.wire.checkpoint_evaluation import (
    CheckpointEvaluation,
    EnginePod,
    EvaluationAnswer,
    EvaluationQuestion,
    ScoredSamples,
)
from rljob_api.wire.identity import Endpoints, PodKey
from rljob_operator.local.device_placement import place
from rljob_operator.local.errors import RunRefused
from rljob_operator.local.memory_folders import memory_folder

_PROGRAM = "rljob_workers.launcher.evaluate"


class EvaluationRefused(Exception):
    """There is no answer: the sentence for the user, and the exit code of the command."""

    def __init__(self, sentence: str, exit_code: int) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code


def with_sets(job: RLJob, names: Sequence[str]) -> RLJob:
    """The job with the sets of these names alone; all of them without a name. Raises EvaluationRefused."""
    evaluation = job.spec.evaluation
    if evaluation is None:
        raise EvaluationRefused(
            "spec.evaluation is not given: there is no set to score. Add one, as docs/evaluation.md shows.",
            EXIT_BAD_MANIFEST,
        )
    known = [each.name for each in evaluation.sets]
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        raise EvaluationRefused(
            f"--set-name: {unknown} is no set of spec.evaluation.sets ({', '.join(known)}). Give one of these.",
            EXIT_BAD_MANIFEST,
        )
    sets = [each for each in evaluation.sets if not names or each.name in names]
    spec = job.spec.model_copy(update={"evaluation": evaluation.model_copy(update={"sets": sets})})
    return job.model_copy(update={"spec": spec})


def engine_pods(roles: RolesSpec) -> list[EnginePod]:
    """The job's engines, as many as it begins with, and devices for them: no other role needs any now.

    Raises EvaluationRefused where the machine has too few.
    """
    alone = {
        role.value: spec.model_copy(update={"gpus": 0 if role is not TICKET_ROLE else spec.gpus} | _OWN_DEVICES)
        for role, spec in roles.present().items()
    }
    first = {"replicas": roles.rollout.first_replicas, "autoscaling": None}
    alone[TICKET_ROLE.value] = alone[TICKET_ROLE.value].model_copy(update=first)
    asked = roles.model_copy(update=alone)
    try:
        found = machine_devices() if roles.rollout.gpus else None
        dealt = place(asked, found.names, found.source) if found is not None else {}
    except (ValueError, RunRefused) as error:
        raise EvaluationRefused(str(error), EXIT_BAD_MANIFEST) from error
    pods = (PodKey(role=TICKET_ROLE, replica=replica) for replica in range(roles.rollout.first_replicas))
    return [EnginePod(pod=pod, devices=list(dealt.get(pod, ()))) for pod in pods]


_OWN_DEVICES = {"share_devices_with": None}


@contextmanager
def _folders(job: RLJob) -> Iterator[Endpoints]:
    """Logs, and what engines have in memory; both are taken away at the end."""
    with tempfile.TemporaryDirectory(prefix="rljob-evaluate-", ignore_cleanup_errors=True) as folder:
        memory = memory_folder(Path(folder))
        try:
            yield Endpoints(
                job=job.metadata.name,
                coordinator="",
                token="",
                control_redis="",
                storage_units=[],
                run_dir=folder,
                weights_dir=str(memory),
            )
        finally:
            shutil.rmtree(memory, ignore_errors=True)


def evaluate(
    job: RLJob, folder: Path, pods: list[EnginePod], on_progress: Callable[[ScoredSamples], None], *, is_verified: bool
) -> CheckpointEvaluation:
    """Scores the job's sets with the checkpoint in `folder`. Raises EvaluationRefused.

    `is_verified`: its weights are compared with their checksums.
    """
    with _folders(job) as endpoints, tempfile.TemporaryFile() as errors:
        question = EvaluationQuestion(
            job=job,
            folder=str(folder.absolute()),
            is_verified=is_verified,
            pods=pods,
            endpoints=endpoints,
            asker=os.getpid(),
        )
        command = [sys.executable, "-m", _PROGRAM]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(question.model_dump_json(by_alias=True).encode())
                process.stdin.close()
                answer = _last_answer(process.stdout, on_progress)
            except BaseException:  # an interrupt, too: the process ends its engines
                process.terminate()
                process.wait()
                raise
            code = process.wait()
        if answer is None:
            errors.seek(0)
            last = (errors.read().decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
            raise EvaluationRefused(f"The process that evaluates ended with {code}: {last}", EXIT_FAILED)
    if answer.refusal is not None:
        raise EvaluationRefused(answer.refusal.sentence, answer.refusal.exit_code)
    assert answer.found is not None
    return answer.found


def _last_answer(lines: IO[bytes], on_progress: Callable[[ScoredSamples], None]) -> EvaluationAnswer | None:
    """The answer that is no progress; None where the process has ended without."""
    found = None
    for line in lines:
        try:
            answer = EvaluationAnswer.model_validate_json(line)
        except ValidationError:
            continue  # cut off
        if answer.progress is not None:
            on_progress(answer.progress)
        else:
            found = answer
    return found
