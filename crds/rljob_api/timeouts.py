"""Times that follow from others, or from bytes, where the spec says nothing: derived here once.

Pure. Read by roles and checkpoints.
"""

from rljob_api.spec import RestartPolicySpec

LEAST_ABSENCE_SECONDS = 60.0
"""A restart of the coordinator takes a second or two, on another node some tens."""

LEAST_PARTS_SECONDS = 300.0
"""A disk that stalls may take minutes for a part of a checkpoint, however short the policy's times are."""

LEAST_LOADING_SECONDS = 300.0
"""For what a start does beside reading: imports of a reward, memory of a model, compilation."""

LEAST_BYTES_PER_SECOND = 20e6
"""A rank's share of a network disk that the ranks of a large job read or write at once."""


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
    """How long a checkpoint whose leader has written its part waits for those of the others, beside `transfer_seconds`.

    Parts are dealt by size, so that the others' have about as many bytes as the leader's.
    """
    return max(LEAST_PARTS_SECONDS, collective_seconds(policy))


def transfer_seconds(num_bytes: int) -> float:
    """What reading or writing so many bytes may take on the slowest storage that a job is run on."""
    return num_bytes / LEAST_BYTES_PER_SECOND


def loading_seconds(num_bytes: int) -> float:
    """How long a rank may take to load what it reads so many bytes of, by its own announcement."""
    return LEAST_LOADING_SECONDS + transfer_seconds(num_bytes)


def standstill_seconds(policy: RestartPolicySpec) -> float:
    """How long an engine that has requests may make no token before they are given up, by name.

    Shorter than a stall, which restarts the whole job: the same requests at the same engine may do.
    """
    return (policy.heartbeat_timeout_seconds + policy.stall_timeout_seconds) / 2
