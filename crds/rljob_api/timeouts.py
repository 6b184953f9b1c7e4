"""Times that follow from others where the spec says nothing: derived here once.

Pure. Read by roles and checkpoints.
"""

from rljob_api.spec import RestartPolicySpec

LEAST_ABSENCE_SECONDS = 60.0
"""A restart of the coordinator takes a second or two, on another node some tens."""

LEAST_PARTS_SECONDS = 300.0
"""A slow disk may take minutes for a part of a checkpoint, however short the policy's times are."""


def collective_seconds(policy: RestartPolicySpec) -> float:
    """How long ranks wait for each other within one collective.

    Longer than silence takes to be noticed, so that a rank that hangs is named and not those who wait for it; shorter
    than a stall, which names nobody.
    """
    if policy.collective_timeout_seconds is not None:
        return float(policy.collective_timeout_seconds)
    return (policy.heartbeat_timeout_seconds + policy.stall_timeout_seconds) / 2


def absence_seconds(policy: RestartPolicySpec) -> float:
    """How long a rank does without its coordinator before it leaves.

    Within what the others of its gang wait for it in a collective, where that leaves a minute: then it leaves by its
    own exit code, which is not counted, and is not called a hang.
    """
    if policy.coordinator_absence_seconds is not None:
        return float(policy.coordinator_absence_seconds)
    most = collective_seconds(policy)
    return max(min(LEAST_ABSENCE_SECONDS, most), most / 2)


def parts_seconds(policy: RestartPolicySpec) -> float:
    """How long a checkpoint whose leader has written its part waits for those of the other ranks."""
    return max(LEAST_PARTS_SECONDS, collective_seconds(policy))


def standstill_seconds(policy: RestartPolicySpec) -> float:
    """How long an engine that has requests may make no token before they are given up, by name.

    Shorter than a stall, which restarts the whole job: the same requests at the same engine may do.
    """
    return (policy.heartbeat_timeout_seconds + policy.stall_timeout_seconds) / 2
