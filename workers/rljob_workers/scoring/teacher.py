"""A teacher: the model of the role reference where it lies in a folder of its own, and is no version of the policy.

For `scoring.forward`, whose loop gets its weights from a receiver here as it gets the policy's from the actor.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rljob_api.model_files.tokens import FIELD, teacher_problem, tokens_in, tokens_of
from rljob_api.names import Stream, WeightVersion
from rljob_api.wire.identity import WeightId
from rljob_workers.dcs.weights.transport import WeightReceiver
from rljob_workers.models.building import weight_files
from rljob_workers.models.weights import Folder, Weights, WeightSource
from rljob_workers.trainers import build_forward_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transformers import PreTrainedTokenizerBase

    from rljob_api.names import Lineage, Role
    from rljob_api.spec import RLJobSpec
    from rljob_workers.trainers.base import ForwardModel
    from rljob_workers.trainers.data_parallel import DataParallelGroup


@dataclass(frozen=True, slots=True)
class Teacher:
    """A folder that reads the policy's tokens."""

    folder: Path
    spec: RLJobSpec
    """The job with the teacher's model in the place of the policy's: of its types, and computed by the same backend."""

    @classmethod
    def of(cls, spec: RLJobSpec) -> Teacher | None:
        """The job's; None where its reference is a version of the policy.

        Raises ValueError with the field and the cure where the folder lacks files, or has another tokenizer.
        """
        if not spec.has_teacher:
            return None
        assert spec.roles.reference is not None, "it has a teacher"
        folder = Path(spec.roles.reference.model_path or "")
        with _naming_its_field():
            weight_files(folder)
        wrong = teacher_problem(spec.model, tokens_of(spec.model), folder, tokens_in(folder))
        if wrong is not None:
            raise ValueError(wrong)
        model = spec.model.model_copy(update={"path": str(folder), "config": None})
        actor = spec.roles.actor.model_copy(update={"backend": spec.trainer_backend})
        roles = spec.roles.model_copy(update={"actor": actor})
        return cls(folder, spec.model_copy(update={"model": model, "roles": roles}))

    def model(self, tokenizer: PreTrainedTokenizerBase, role: Role, gang: DataParallelGroup) -> ForwardModel:
        """This rank's part of it, without weights; `tokenizer` is the policy's. ValueError as of `of`."""
        with _naming_its_field():
            return build_forward_model(self.spec, tokenizer, role, gang)

    def receiver(self, lineage: Lineage) -> WeightReceiver:
        """What gives its weights, once, to a rank of an epoch that began with `lineage`."""
        weight = WeightId(lineage=lineage, version=WeightVersion(0))
        return _GivenWeights(Weights(weight, Stream.REFERENCE, Folder(self.folder)))


_OF_THE_POLICY = "model.path: "
"""With this begin sentences about a model's folder, whose ever it is."""


@contextmanager
def _naming_its_field() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        if not str(error).startswith(_OF_THE_POLICY):
            raise
        raise ValueError(f"{FIELD}: {str(error).removeprefix(_OF_THE_POLICY)}") from error


class _GivenWeights(WeightReceiver):
    """Weights that never become newer: version 0 of the reference, alive in every lineage, as the policy's would be."""

    def __init__(self, given: Weights[WeightSource]) -> None:
        self._given = given

    def await_newer(
        self,
        stream: Stream,  # noqa: ARG002 - it is of the reference alone
        than: WeightId | None,
        *,
        deadline: float,  # noqa: ARG002 - nothing is waited for
        pulse: Callable[[], None] | None = None,  # noqa: ARG002
    ) -> Weights[WeightSource] | None:
        """See the base."""
        return self._given if than is None else None

    def close(self) -> None:
        """The folder stays: it is the user's."""
