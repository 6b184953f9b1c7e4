"""How long clients of the queue and their connections wait. Values only, for every part of this room.

What the coordinator allows is `admin.QueueAdminTiming`; what nobody has a reason to change is a constant where it is
used.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueueTiming:
    """In seconds."""

    patience_seconds: float = 30.0
    """For one change, or one put with its bytes: a restart of Redis takes about a second."""
    claim_patience_seconds: float = 2.0
    """Beyond a claim's own timeout. Shorter: a claim may be asked again, and its caller must beat meanwhile."""
    lease_seconds: float = 30.0
    """A lease that no beat renews ends after this."""
    control_silence_seconds: float = 5.0
    """A control Redis that is silent for so long is taken for gone: every function of ours ends within milliseconds."""
    unit_silence_seconds: float = 2.0
    """A storage unit that takes and gives no byte for so long hangs, however much time a whole transfer may take."""
    unit_patience_seconds: float = 2.0
    """A put that one unit keeps waiting for so long goes to another: its rows are bound to no unit."""
