"""Names of the counters and gauges that a rank may send with its beats. Others are left out of /metrics.

A name ending in `_total` is a monotonic counter of one life; any other is a gauge.
"""

KNOWN_COUNTERS = frozenset(
    {
        "groups_total",
        "samples_total",
        "tokens_total",
        "rows_total",
        "optimizer_steps_total",
        "steps_total",
        "groups_lost_total",
        "leases_lost_total",
        "tickets_returned_total",
        "weights_received_total",
        "weight_bytes_received_total",
        "weights_published_total",
        "weight_retries_total",
        "checkpoints_total",
        "rewards_failed_total",
        "engine_errors_total",
        "withheld_seconds_total",
        "starved_seconds_total",
        "working_seconds_total",
        "generate_seconds_total",
        "reward_seconds_total",
        "log_probs_seconds_total",
        "train_seconds_total",
        "put_seconds_total",
        "get_seconds_total",
        "checkpoint_seconds_total",
        "weight_sync_seconds_total",
        "weight_version",
        "tickets_in_work",
    }
)
