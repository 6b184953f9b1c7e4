"""`roles.rollout.autoscaling`: the bounds within which RLJob sets the number of rollouts itself, and how patiently.

Cross-field rules stand here, beside their fields. How the number is found is `rljob_operator.core.autoscaling`.
"""

from pydantic import Field

from rljob_api.rule import Rule, RuledModel

MOST_REPLICAS = 1024

ROLLOUT_SCALE: tuple[Rule, ...] = (
    Rule(
        field="replicas",
        # The API server fills in 1, which nobody can tell from a 1 that somebody gave.
        holds=lambda role: role.autoscaling is None or role.replicas == 1,
        sentence="{replicas} is not yours to give: with autoscaling RLJob sets the number itself, from "
        "{autoscaling.minReplicas} to {autoscaling.maxReplicas}. Remove replicas or set it back to 1, or remove "
        "autoscaling.",
        cel="!has(self.autoscaling) || self.replicas == 1",
    ),
)
"""Of the role beside it. Also whoever writes to the scale subresource is refused by it."""


class AutoscalingSpec(RuledModel):
    """More rollout replicas while the actor is starved of rows, fewer while rollouts idle since tickets are withheld.

    It is judged at the ends of steps, over at least maxStaleness + 1 of them, which may be in work at the same time.
    After each change as many are left out first, whose rows were begun before it; after each restart one is.
    """

    rules = (
        Rule(
            field="maxReplicas",
            holds=lambda autoscaling: autoscaling.max_replicas >= autoscaling.min_replicas,
            sentence="{maxReplicas} is below minReplicas {minReplicas}. Give at least minReplicas.",
            cel="self.maxReplicas >= self.minReplicas",
        ),
    )

    min_replicas: int = Field(ge=1, le=MOST_REPLICAS)
    """Fewest rollout replicas, and those that a job begins with."""
    max_replicas: int = Field(ge=1, le=MOST_REPLICAS)
    """Most rollout replicas. `rljob run` deals devices for all of them before it starts."""
    scale_up_after_seconds: int = Field(default=60, ge=10, le=86400)
    """For so long, at least, the actor has been starved before replicas are added: at most as many as there are."""
    scale_down_after_seconds: int = Field(default=300, ge=10, le=86400)
    """For so long, at least, rollouts have been idle before replicas drain: at most half of them."""
    tolerance: float = Field(default=0.1, ge=0.01, le=0.9)
    """The share of time that the actor may be starved beyond the share that rollouts are idle, or the other way round,
    without a change."""
