"""Estimators of advantages (`spec.algorithm.advantage`): their names, their traits and their fields.

Anyone may import it. The formulas are `rljob_workers.algorithms.advantages`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum

from pydantic import Field

from rljob_api.base import ApiModel


class Advantage(StrEnum):
    """How rewards become advantages."""

    GRPO = "Grpo"
    DR_GRPO = "DrGrpo"
    RLOO = "Rloo"
    REMAX = "ReMax"
    REINFORCE_PLUS_PLUS = "ReinforcePlusPlus"
    REINFORCE_PLUS_PLUS_BASELINE = "ReinforcePlusPlusBaseline"
    GAE = "Gae"
    DISTILLATION = "Distillation"


class Statistics(Enum):
    """Over what an estimator compares rewards: the rows that it must see at once."""

    ROW = "row"
    GROUP = "group"
    """All samples of a prompt."""
    PARTITION = "partition"
    """All rows of a rollout."""


@dataclass(frozen=True, slots=True)
class AdvantageTraits:
    """A row of the table of estimators: all that can be known of one without torch."""

    statistics: Statistics = Statistics.GROUP
    is_per_token: bool = False
    """Whether it gives a number for each token; else one for each sample."""
    needs_values: bool = False
    """Whether it reads a critic's values, and gives returns to train it on."""
    needs_greedy: bool = False
    """Whether it measures samples against a greedy answer to their prompt, which is drawn and scored beside them."""
    needs_reference: bool = False
    """Whether it reads the log-probs of a teacher, which is the model of the role reference, and no rewards."""
    compares_group: bool = True
    """Whether a group whose rewards, a greedy answer's among them, are all equal has no advantage."""
    fewest_samples: int = 2
    """Samples that a prompt needs so that each is measured against something: the others, or something else."""

    @property
    def is_of_a_group(self) -> bool:
        """Whether the rewards of a group, and of its greedy answer, are all that it needs."""
        return self.statistics is not Statistics.PARTITION and not self.is_per_token


ADVANTAGES: Mapping[str, AdvantageTraits] = {
    Advantage.GRPO: AdvantageTraits(),
    Advantage.DR_GRPO: AdvantageTraits(),
    Advantage.RLOO: AdvantageTraits(),
    Advantage.REMAX: AdvantageTraits(Statistics.ROW, needs_greedy=True, fewest_samples=1),
    Advantage.REINFORCE_PLUS_PLUS: AdvantageTraits(
        Statistics.PARTITION, is_per_token=True, compares_group=False, fewest_samples=1
    ),
    Advantage.REINFORCE_PLUS_PLUS_BASELINE: AdvantageTraits(Statistics.PARTITION, is_per_token=True),
    Advantage.GAE: AdvantageTraits(
        Statistics.PARTITION, is_per_token=True, needs_values=True, compares_group=False, fewest_samples=1
    ),
    Advantage.DISTILLATION: AdvantageTraits(
        Statistics.ROW, is_per_token=True, needs_reference=True, compares_group=False, fewest_samples=1
    ),
}


OF_A_TEACHER = tuple(str(name) for name, traits in ADVANTAGES.items() if traits.needs_reference)
"""Estimators that use a teacher's log-probs."""


WITHOUT_GROUPS = tuple(str(name) for name, traits in ADVANTAGES.items() if not traits.compares_group)
"""Estimators that measure samples against something other than their group."""


OWN_ADVANTAGE = AdvantageTraits(fewest_samples=1)
"""Traits of a user's function: whole groups in, one number a sample out. It decides what it measures them against."""


class Whitening(StrEnum):
    """Over what advantages get mean 0 and variance 1."""

    NONE = "None"
    PARTITION = "Partition"


class CutOff(StrEnum):
    """The return expected after the last token of an answer that was cut off."""

    ENDS = "Ends"
    GOES_ON = "GoesOn"


class GaeSpec(ApiModel):
    """Generalised advantage estimation over the tokens that the model drew, by the values of a critic."""

    lambda_: float = Field(default=1.0, alias="lambda", ge=0, le=1)
    """How much counts what came after the next token, for which the critic has a value. 1: all of it, so that values
    are a baseline and nothing else. 0: nothing, the next token's value stands for all that comes."""
    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount of each token that the model draws."""
    cut_off: CutOff = CutOff.ENDS
    """Answers that were cut off at maxNewTokens or at the model's last position. Ends: their reward is all that there
    is, as of others. GoesOn: the answer would have gone on, and the value at its last token is expected on top. Where
    every answer is cut off, and rewards are no penalties, returns then grow without end."""
    whiten: Whitening = Whitening.NONE
    """None: advantages have the scale of the rewards, and rows are served as they come. Partition: mean 0 and variance
    1 over all drawn tokens of the rollout, which must be complete first, so that no slice of it is trained on while
    others are still being generated."""
