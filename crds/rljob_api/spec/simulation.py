"""The cost model of a simulated job (`spec.simulation`): the seconds that skipped computation takes.

Anyone may import it. A job with engines of kind Sim computes no model; everything else of it is real.
`docs/simulation.md` is for users.
"""

from pydantic import Field

from rljob_api.base import ApiModel


class SimulatedCost(ApiModel):
    """Time that one kind of work takes on one rank or engine."""

    seconds_per_token: float = Field(default=0.0, ge=0, le=3600)
    """In generation: until each running sample has its next token, however many run. In training and log-probs: for
    each token of prompts and responses."""
    seconds_per_row: float = Field(default=0.0, ge=0, le=3600)
    """In generation: for each sample that begins, and for each that new weights retract, while the others wait. In
    training and log-probs: for each sample, beside its tokens."""


class SimulatedLengths(ApiModel):
    """Log-normal lengths of responses; sampling.maxNewTokens cuts them."""

    mean: float = Field(ge=1, le=1048576)
    """In tokens, the end-of-sequence token among them, before the cut."""
    sigma: float = Field(default=1.0, ge=0, le=4)
    """Standard deviation of the length's logarithm: 1.0 has one response in 18 longer than three times the mean."""


class SimulationSpec(ApiModel):
    """The cost model of a simulated job. Without settings it takes no time."""

    generation: SimulatedCost = SimulatedCost()
    """Cost on each engine."""
    log_probs: SimulatedCost = SimulatedCost()
    """Cost on each rank of actorFwd and reference, of an actor that computes log-probs, and of the critic's values."""
    training: SimulatedCost = SimulatedCost()
    """Cost on each rank of actor and critic: forward and backward pass."""
    lengths: SimulatedLengths | None = None
    """How long responses are, whatever the policy; of each sample by its seed. Null: they end by chance, as the policy
    has it."""
    slots: int | None = Field(default=None, ge=1, le=65536)
    """Samples that an engine runs at once, each a request of its own, as with SGLang; others wait in it. Null: 2048,
    and a request has all samples of its prompts."""
    speed: float = Field(default=1.0, gt=0, le=1e6)
    """How many times faster than real time the simulated seconds pass: 10 spends a tenth of them. Heartbeats, time-outs
    and everything that is not simulated keep their own time."""
