"""The process behind `rljob evaluate`: `python -m rljob_workers.launcher.evaluate < QUESTION`.

Started by the command line, which imports nothing of the workers. It keeps the engines, as a launcher does, and forks
the process that asks them (`rollout.checkpoint_evaluation`). No coordinator, no queue: what ends here is begun anew.
The question is JSON, the answers are lines of it on stdout (`rljob_api.wire.checkpoint_evaluation`).
"""

from __future__ import annotations

import os
import secrets
import select
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rljob_api.machine.attended_time import AttendedClock
from rljob_api.names import (
    EXIT_BAD_MANIFEST,
    EXIT_FAILED,
    EXIT_SUCCEEDED,
    EXIT_TERMINATED,
    Epoch,
)
from rljob_api.roles import TICKET_ROLE
from rljob_api.wire.checkpoint_evaluation import EvaluationAnswer, EvaluationQuestion, ScoredSamples
from rljob_api.wire.checkpoint_report import Refusal
from rljob_api.wire.epochs import PodOrder
from rljob_api.wire.failures import Failure
from rljob_api.wire.identity import Incarnation, RankKey
from rljob_api.wire.processes import preloads_of
from rljob_workers.launcher.preload import limit_thread_pools, preload

limit_thread_pools()  # before anything below pulls in NumPy or torch

from rljob_workers.dcs.membership.rank_context import RankContext, RankMemory  # noqa: E402 -- see above
from rljob_workers.engines import backend_of  # noqa: E402 -- see above
from rljob_workers.launcher.engines import Engines  # noqa: E402 -- see above
from rljob_workers.launcher.environment import PodIdentity, one_machine  # noqa: E402 -- see above
from rljob_workers.launcher.forking import (  # noqa: E402 -- see above
    Child,
    Exit,
    SignalPipe,
    die_with_parent,
    fork_child,
    how_it_ended,
    reap,
)
from rljob_workers.launcher.launcher import LONGEST_TURN_SECONDS, TICK_SECONDS  # noqa: E402 -- see above
from rljob_workers.launcher.plan import PodView, StartEngine, plan  # noqa: E402 -- see above
from rljob_workers.launcher.pod_devices import see_only  # noqa: E402 -- see above

MOST_DEATHS = 5
"""Of engines, after which the next one would die of the same: no restart table counts them here."""


class _Answers:
    """The pipe to the command line, which no engine may hold open."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def print(self, answer: EvaluationAnswer) -> None:
        """One line."""
        os.write(self._descriptor, answer.model_dump_json(exclude_defaults=True, by_alias=True).encode() + b"\n")

    def close(self) -> None:
        """This process's copy."""
        os.close(self._descriptor)


class Evaluation:
    """The engines of a job on this machine, and the process that has them score its sets."""

    def __init__(self, question: EvaluationQuestion, signals: SignalPipe, answers: _Answers) -> None:
        """`run` begins it. `answers` is where the other process answers."""
        self._question = question
        self._signals = signals
        self._answers = answers
        self._logs = Path(question.endpoints.run_dir) / "logs"
        self._attended = AttendedClock(LONGEST_TURN_SECONDS, time.monotonic)
        self._pods = [
            (
                PodOrder(pod=each.pod, epoch=Epoch(1)),
                Engines(
                    PodIdentity(each.pod, "evaluation", 0),
                    one_machine(question.endpoints, each.devices),
                    question.job,
                    backend_of,
                    time.monotonic,
                    self._attended,
                ),
            )
            for each in question.pods
        ]
        self._deaths = 0

    @property
    def _engines(self) -> list[Engines]:
        return [engines for _, engines in self._pods]

    def run(self) -> int:
        """Until the sets are scored, or cannot be; no process is left. The exit code."""
        asks = fork_child(self._ask, self._logs / "evaluation.log", close=(self._signals, *self._engines))
        try:
            return self._keep_engines(asks)
        finally:
            asks.kill()
            for engines in self._engines:
                engines.end_all("the evaluation is over")
            self._until_all_ended()

    def _keep_engines(self, asks: Child) -> int:
        while not self._signals.terminated:
            self._attended.tick()
            self._signals.drain()
            ended = reap()
            # Engines first, all of them: one whose end was passed over would be waited for.
            failures = [failure for each in ended if (failure := self._engine_failure(each)) is not None]
            answered = next((each for each in ended if each.pid == asks.pid), None)
            if answered is not None:
                return self._asked(asks, answered)
            for failure in failures:
                return self._refuse(failure.message, EXIT_BAD_MANIFEST if _is_users(failure) else EXIT_FAILED)
            self._start_engines()
            self._sleep()
        return EXIT_TERMINATED

    def _asked(self, asks: Child, ended: Exit) -> int:
        """The other process has answered, or its last line says why it has not."""
        if ended.code == EXIT_SUCCEEDED:
            return EXIT_SUCCEEDED
        lines = asks.last_output().splitlines()
        sentence = lines[-1] if lines else f"The process that asks the engines {how_it_ended(ended.code)}."
        return self._refuse(sentence, EXIT_BAD_MANIFEST if ended.code == EXIT_BAD_MANIFEST else EXIT_FAILED)

    def _refuse(self, sentence: str, exit_code: int) -> int:
        self._answers.print(EvaluationAnswer(refusal=Refusal(sentence=sentence, exit_code=exit_code)))
        return exit_code

    def _engine_failure(self, ended: Exit) -> Failure | None:
        """That of an engine whose next start would be in vain."""
        for order, engines in self._pods:
            failure = engines.exited(ended, order, time.time())
            if failure is not None:
                self._deaths += 1
                is_over = failure.hopeless is not None or _is_users(failure) or self._deaths >= MOST_DEATHS
                return failure if is_over else None
        return None

    def _start_engines(self) -> None:
        for order, engines in self._pods:
            engines.turn()
            others = [each for each in self._engines if each is not engines]
            wanted = PodView(num_ranks=0, drain_seconds=0.0, engines=engines.views())
            for step in plan(order, wanted, time.monotonic()):
                if isinstance(step, StartEngine):
                    engines.start(step.index, (self._signals, self._answers, *others))

    def _sleep(self) -> None:
        poller = select.poll()
        poller.register(self._signals.fileno(), select.POLLIN)
        for engines in self._engines:
            engines.watch(poller)
        poller.poll(TICK_SECONDS * 1000)

    def _until_all_ended(self) -> None:
        """Killed, they are gone at once; each clears its folder."""
        while any(view.alive for engines in self._engines for view in engines.views()):
            for ended in reap():
                for engines in self._engines:
                    engines.exited(ended, None, time.time())
            self._sleep()
            self._signals.drain()

    def _ask(self) -> int:
        """In the forked process."""
        see_only(())
        from rljob_workers.rollout.checkpoint_evaluation import CheckpointEvaluator

        def report(progress: ScoredSamples) -> None:
            self._answers.print(EvaluationAnswer(progress=progress))

        found = CheckpointEvaluator(self._question, self._contexts(), report).run()
        self._answers.print(EvaluationAnswer(found=found))
        return EXIT_SUCCEEDED

    def _contexts(self) -> Sequence[RankContext]:
        """Of each engine, as a rank of the role rollout has it."""
        return [
            RankContext(
                incarnation=Incarnation(
                    key=RankKey(role=order.pod.role, replica=order.pod.replica, rank=view.index),
                    epoch=order.epoch,
                    generation=order.generation,
                    id=secrets.token_hex(6),
                ),
                endpoints=self._question.endpoints,
                job=self._question.job,
                global_rank=0,
                world_size=1,
                launcher=secrets.token_hex(6),
                engine_url=url,
                engine_identity=identity,
                memory=RankMemory(),
            )
            for order, engines in self._pods
            for view in engines.views()
            for url, identity in [engines.address(view.index)]
        ]


def _is_users(failure: Failure) -> bool:
    """Whether an engine has refused what the manifest says of it."""
    return failure.exit_code == EXIT_BAD_MANIFEST


def main(read: Callable[[], bytes]) -> int:
    """Answers the question; gives the exit code."""
    question = EvaluationQuestion.model_validate_json(read())
    die_with_parent(question.asker)
    answers = _Answers(os.dup(1))
    os.dup2(2, 1)  # what a library prints is no answer
    answers.print(EvaluationAnswer(progress=ScoredSamples()))
    preload(preloads_of(question.job.spec, [TICKET_ROLE]))
    return Evaluation(question, SignalPipe(), answers).run()


if __name__ == "__main__":
    code = main(sys.stdin.buffer.read)
    sys.stderr.flush()
    os._exit(code)  # as the parent of launchers
