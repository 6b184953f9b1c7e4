"""Estimators of advantages (`spec.algorithm.advantage`): their names, their traits and their fields.

Anyone may import it. The formulas are `rljob_workers.algorithms.advantages`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum


class Advantage(StrEnum):
    """How rewards become advantages."""

    GRPO = "Grpo"


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


ADVANTAGES: Mapping[str, AdvantageTraits] = {Advantage.GRPO: AdvantageTraits()}


OWN_ADVANTAGE = AdvantageTraits()
"""Of a function of the user's: whole groups in, one number a sample out."""
