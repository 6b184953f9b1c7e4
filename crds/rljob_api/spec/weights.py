"""Weight synchronisation of a job (`spec.weightSync`). Anyone may import it."""

from enum import StrEnum

from pydantic import Field

from rljob_api.base import ApiModel


class WeightBackend(StrEnum):
    """How weights travel from the trainer to the receivers."""

    HOST_STAGED = "HostStaged"


class Interruption(StrEnum):
    """Treatment of running generations when weights change."""

    RETRACT = "Retract"
    IN_PLACE = "InPlace"
    DRAIN = "Drain"


class WeightVerification(StrEnum):
    """How the weights of an engine are verified."""

    PROBE = "Probe"
    NONE = "None"


class WeightSyncSpec(ApiModel):
    """The way of a weight version from the trainer to its receivers."""

    backend: WeightBackend = WeightBackend.HOST_STAGED
    """HostStaged: a copy in host memory is served over TCP while training goes on."""
    interruption: Interruption = Interruption.RETRACT
    """Treatment of samples that run when new weights come. Retract: their tokens are kept, and their KV cache is
    computed again, so that later tokens are wholly the new policy's. InPlace: tokens and KV cache are kept, which costs
    nothing; later tokens, labelled with the new version, were computed with the old one's keys and values of those
    before them. Drain: they run to their ends first, each under one version, while the engine empties. A sample's
    staleness counts from the oldest version of its tokens in all three."""
    chunk_bytes: int = Field(default=4 << 20, ge=1 << 12, le=1 << 30)
    """Weights travel in checksummed chunks of this size, in bytes."""
    timeout_seconds: int = Field(default=300, ge=1, le=86400)
    """Longest time for one version to reach a receiver."""
    verify: WeightVerification | None = None
    """Probe: after each update the engine scores 64 fixed tokens, and its log-probs must be those that the trainer has
    published with the version; until then nothing that it made under that version counts. None: its answer is
    trusted. Null: Probe, where the engine can score given tokens."""
