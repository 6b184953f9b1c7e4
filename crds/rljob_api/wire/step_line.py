"""A line of `metrics.jsonl`, from the coordinator's event of a trained step.

Written by `rljob run` on one machine and by the coordinator on a cluster, where trackers read it. Pure.
"""

from rljob_api.wire.observation import CoordinatorEvent, QueueObservation


def step_line(event: CoordinatorEvent, queue: QueueObservation | None) -> dict[str, object] | None:
    """What the user reads of a step; None for an event without a report."""
    report = event.step
    if report is None:
        return None
    seconds = max(report.seconds, 1e-9)
    return {
        "time": event.at,
        "step": report.step,
        "epoch": event.epoch,
        "reward": report.reward,
        "loss": report.loss,
        "weightVersion": report.version,
        "staleness": report.staleness,
        "samples": report.samples,
        "tokens": report.tokens,
        "seconds": report.seconds,
        "samplesPerSecond": report.samples / seconds,
        "tokensPerSecond": report.tokens / seconds,
        "queueDepth": queue.groups_issued if queue is not None else None,
        **{name: value for name, value in sorted(report.metrics.items()) if name not in _OURS},
    }


_OURS = frozenset(
    ("time", "step", "epoch", "reward", "loss", "weightVersion", "staleness", "samples", "tokens", "seconds")
)
"""A metric of the trainer cannot replace one of these."""
