"""What `rljob evaluate` asks of a process of the workers, and the lines that this process answers with.

The process prints one `EvaluationAnswer` a line: how far it is, and in the end what it has found or why it has refused.
"""

from pydantic import Field

from rljob_api.base import WireModel
from rljob_api.spec import RLJob
from rljob_api.wire.checkpoint_report import Refusal
from rljob_api.wire.identity import Endpoints, PodKey


class EnginePod(WireModel):
    """The engines of one pod of the role rollout."""

    pod: PodKey
    devices: list[str]
    """The pod's, as CUDA_VISIBLE_DEVICES names them; empty: they compute on the CPU."""


class EvaluationQuestion(WireModel):
    """Score sets with one checkpoint."""

    job: RLJob
    """Resolved, with the sets that are asked for."""
    folder: str
    """A record, the folder with a job's records, of which the latest is meant, or a Hugging Face folder."""
    is_verified: bool
    """Whether the weights of a record are compared with their checksums."""
    pods: list[EnginePod] = Field(min_length=1)
    endpoints: Endpoints
    """Of these only the folders are there: no service runs."""
    asker: int
    """The process that waits for the answer, and without which there is nothing to do."""


class ScoredSamples(WireModel):
    """How far the process is."""

    scored: int | None = None
    """None: its engines start."""
    total: int = 0


class CheckpointEvaluation(WireModel):
    """What was found of a checkpoint."""

    folder: str
    """Of the weights that were evaluated."""
    version: int | None
    """Of a record; None for any other folder."""
    samples: int
    reward_retries: int = 0
    """Calls for answers whose reward had failed, and requests to rewards' servers, made again."""
    metrics: dict[str, float]
    """As of an evaluation during training: `eval/SET/NAME` and `eval/SET/SOURCE/NAME`."""


class EvaluationAnswer(WireModel):
    """One line of the process; one of its fields is set."""

    progress: ScoredSamples | None = None
    found: CheckpointEvaluation | None = None
    refusal: Refusal | None = None
