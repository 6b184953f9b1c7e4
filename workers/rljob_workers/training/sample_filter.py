"""Whether a sample that was dealt is trained on: a function of the user's, asked with all that is known by then.

Used by the actor's loop on each rank, for the rows of its slices. A row that is left out stays in its place, masked.
Ranks that share rows share the answer, which one of them has asked for. Users import `TrainsOn` and `DealtSample` from
here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from rljob_workers.engines.base import FINISH_LENGTH
from rljob_workers.tensors.columns import Column
from rljob_workers.tensors.packed import RowExtra, unpack_rows
from rljob_workers.trainers.base import no_progress
from rljob_workers.trainers.mesh import Mesh, Message
from rljob_workers.user_functions import FinalCalls, Signature, load_called

if TYPE_CHECKING:
    import numpy.typing as npt

    from rljob_api.spec import RLJobSpec
    from rljob_workers.training.learnt_tokens import LearntTokens
    from rljob_workers.transfer_queue.types import Batch

FIELD = "algorithm.sampleFilter"


_OWN = Signature(1, "sample", "def trains_on(sample): return True")


@dataclass(frozen=True, slots=True, eq=False)
class DealtSample:
    """A sample, as the step that would train on it knows it. Its arrays are read-only: they are what is trained on."""

    rollout: int
    """r of train_r."""
    group: int
    """Of the rollout: samples of one prompt have the same."""
    index: int
    """In the group."""
    reward: float
    advantages: npt.NDArray[np.float32]
    """[response tokens]"""
    staleness: int
    """r minus the oldest version that drew a token that is learnt from."""
    is_truncated: bool
    """Whether its response was cut off."""
    prompt_ids: npt.NDArray[np.int32]
    """[prompt tokens]"""
    response_ids: npt.NDArray[np.int32]
    """[response tokens]"""
    loss_mask: npt.NDArray[np.uint8]
    """[response tokens] 1 where the token is learnt from, 0 where a tool wrote it, or it is too old (carried)."""
    rollout_log_probs: npt.NDArray[np.float32]
    """[response tokens] the engine's log-prob of each token, in nats."""
    metrics: Mapping[str, float]
    """What its reward, and its rollout function, have measured."""
    dataset: str
    source: str
    """Where in the data set its prompt comes from (data.sourceKey)."""

    @property
    def response_length(self) -> int:
        """Tokens of the response, those that a tool wrote included."""
        return len(self.response_ids)


class TrainsOn(Protocol):
    """A user's filter: whether a sample is trained on."""

    def __call__(self, sample: DealtSample, /) -> bool:
        """True for a sample that is; one that is not is left out of the loss. Whatever it raises fails the job.

        Asked once for each sample of a rollout that has a token to learn from. It is called by the loop that trains: a
        call must return within restartPolicy.heartbeatTimeoutSeconds.
        """
        ...


class SampleFilter:
    """A user's function, its result checked."""

    def __init__(self, name: str, function: TrainsOn, samples_per_prompt: int) -> None:
        """`name`: its import path."""
        self._calls = FinalCalls(f"{FIELD}: {name}", function)
        self._samples_per_prompt = samples_per_prompt

    @classmethod
    def load(cls, name: str, spec: RLJobSpec) -> SampleFilter:
        """The job's. Raises ValueError, with a sentence, where the function cannot be loaded."""
        path = spec.algorithm.path
        function = load_called(FIELD, name, "algorithm.path", path, _OWN, "a filter is called")
        return cls(name, function, spec.rollout.samples_per_prompt)

    def passed(self, batch: Batch, learnt: LearntTokens, progress: Callable[[], None] = no_progress) -> torch.Tensor:
        """Which rows of the batch are trained on, [rows] bool: of those that are learnt from what the function says.

        `progress` is called after each: there a role beats. Raises ValueError, which fails the job, for what the
        function raises, and for a result that is no bool.
        """
        extra = unpack_rows(batch.columns[Column.EXTRA]) if Column.EXTRA in batch.columns else None
        found = torch.zeros(len(batch.rows), dtype=torch.bool)
        for place, mask in enumerate(learnt.masks(batch).rows()):
            if mask.any():
                of_row = extra[place] if extra is not None else RowExtra()
                found[place] = self._passes(_sample(batch, place, mask, of_row, self._samples_per_prompt))
                progress()
        return found

    def passed_by_source(
        self, mesh: Mesh, batch: Batch, learnt: LearntTokens, progress: Callable[[], None]
    ) -> torch.Tensor:
        """As `passed`, asked for by the source of the ranks that share a model: a collective of them."""
        message = None
        if mesh.is_source:
            message = Message(b"", (self.passed(batch, learnt, progress).to(torch.uint8),))
        (found,) = mesh.share(message, f"what {FIELD} has found of rows of train_{batch.rollout_id}").tensors
        return found.bool()

    def _passes(self, sample: DealtSample) -> bool:
        where = f"sample {sample.index} of group {sample.group} of train_{sample.rollout}"
        return self._calls.verdict(
            where, "Return True for a sample to train on, and False for one to leave out.", sample
        )


def _sample(batch: Batch, place: int, mask: torch.Tensor, extra: RowExtra, samples_per_prompt: int) -> DealtSample:
    """The row at `place`; `mask` [response tokens] is 1 where a token is learnt from, which some are."""
    columns = batch.columns
    tokens, cut = _read_only(columns[Column.TOKENS].row(place)), -len(mask)
    spans = columns[Column.VERSION_SPANS].row(place).tolist()
    oldest = min(version for _, version, start, end in spans if mask[start:end].any())
    return DealtSample(
        rollout=int(batch.rollout_id),
        group=int(batch.groups[place]),
        index=int(batch.rows[place]) % samples_per_prompt,
        reward=float(columns[Column.REWARDS].values[place]),
        advantages=_advantages(batch, place, len(mask)),
        staleness=int(batch.rollout_id - oldest),
        is_truncated=bool(columns[Column.FINISH_REASONS].values[place] == FINISH_LENGTH),
        prompt_ids=tokens[:cut],
        response_ids=tokens[cut:],
        loss_mask=_read_only(mask),
        rollout_log_probs=_read_only(columns[Column.ROLLOUT_LOG_PROBS].row(place)),
        metrics=extra.metrics,
        dataset=str(extra.facts.get("dataset", "")),
        source=str(extra.facts.get("source", "")),
    )


def _advantages(batch: Batch, place: int, num_tokens: int) -> npt.NDArray[Any]:
    if Column.ROW_ADVANTAGES in batch.columns:
        return np.broadcast_to(batch.columns[Column.ROW_ADVANTAGES].values[place].numpy(), num_tokens)
    return _read_only(batch.columns[Column.ADVANTAGES].row(place))


def _read_only(values: torch.Tensor) -> npt.NDArray[Any]:
    """A view: what a filter writes would be trained on, by some ranks of a model and not by others."""
    found = values.numpy()
    found.setflags(write=False)
    return found
