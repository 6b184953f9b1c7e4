"""Samples of an evaluation, which ranks share out among them, and whether it is over.

For `rollout.evaluating` and the actor, reached through `TransferQueueClient.evaluation`; `control/lua/evaluation.lua`
decides which sample is whose. Knows numbers of samples and bytes of results alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain

from rljob_api.names import WeightVersion
from rljob_api.wire.identity import WeightId
from rljob_workers.evaluation import Scored
from rljob_workers.transfer_queue.control.connection import Argument, Wait
from rljob_workers.transfer_queue.errors import ControlUnreachable, NotOpen
from rljob_workers.transfer_queue.rank_calls import RankCalls
from rljob_workers.transfer_queue.types import EvaluationState, EvaluationWaits


@dataclass(frozen=True, slots=True)
class EvaluationSamples:
    """One incarnation's part of evaluations."""

    calls: RankCalls
    wait: Wait[bool]
    """For the end of an evaluation."""

    def claim(
        self, holds: WeightId, digest: str, num_samples: int, limit: int, in_work: Collection[int]
    ) -> list[int] | EvaluationWaits:
        """Up to `limit` numbers of samples to score, of the version that a replica holds; else why there are none.

        The first claim of a version begins its evaluation: `num_samples` in all, of sets that `digest` is of
        (`rljob_workers.evaluation.digest_of`). What this rank was given and has neither put nor named in `in_work`
        comes back: an answer may be lost.
        """
        question: list[Argument] = [holds.lineage, holds.version, digest, num_samples, limit, *in_work]
        try:
            reply = self.calls.change(
                "claim_evaluation",
                *question,
                deadline=self.calls.soon(),
                waiting=f"{self.calls} waits for samples to evaluate",
            )
        except (ControlUnreachable, NotOpen):
            return EvaluationWaits.CLOSED
        if reply[0] == b"S":
            return [int(number) for number in reply[1].split()] or EvaluationWaits.TAKEN
        return EvaluationWaits.OVER if reply[0] == b"O" else EvaluationWaits.OTHER_VERSION

    def put(self, version: WeightVersion, results: Mapping[int, bytes]) -> int:
        """Keeps results of samples that this rank still has; gives how many of them were kept."""
        listed: Iterable[Argument] = chain.from_iterable(results.items())
        (taken,) = self.calls.change(
            "put_evaluation", version, *listed, waiting=f"{self.calls} puts {len(results)} scores"
        )
        return int(taken)

    def hand_back(self, samples: Collection[int], *, killed: bool = False) -> None:
        """Hands samples back. `killed`: an engine died working on them, and their prompts count it."""
        if samples:
            self.calls.change(
                "return_evaluation", int(killed), *samples, waiting=f"{self.calls} returns {len(samples)} samples"
            )

    def scored(self, version: WeightVersion) -> Scored | None:
        """How far the evaluation of `version` has come; None where none of it was begun."""
        waiting = f"{self.calls} looks at an evaluation"
        deadline = self.calls.soon()
        state = EvaluationState.parse(self.calls.read("evaluation", deadline=deadline, waiting=waiting))
        if state.version != version:
            return None
        numbers = self.calls.read("evaluation_scored", deadline=deadline, waiting=waiting)
        return Scored(state.digest, [int(number) for number in numbers])

    def is_over(self, version: WeightVersion, timeout: float) -> bool:
        """Whether the evaluation of `version` is over, at the latest after `timeout`.

        False, too, while the control Redis does not answer.
        """
        wait, patience = self.wait, self.calls.timing.claim_patience_seconds
        for deadline in wait.turns(version, timeout):
            try:
                reply = self.calls.read(
                    "evaluation", deadline=deadline + patience, waiting=f"{self.calls} waits for an evaluation"
                )
            except (ControlUnreachable, NotOpen):
                wait.failed(False)
                continue
            wait.answer = EvaluationState.parse(reply).is_over_of(version)
            if wait.answer:
                break
        return wait.answer
