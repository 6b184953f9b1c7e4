"""Names of the counters that a rank may send with its beats. Others are left out of /metrics."""

from rljob_workers.transfer_queue.types import Withheld

COUNTERS = frozenset(
    {
        "groups_put",
        "groups_lost",
        "queue_claims",
        "queue_rows",
        "queue_got_bytes",
        "queue_put_bytes",
        "queue_wait_seconds",
        "skipped_steps",
        *(f"withheld_{reason.value.lower()}" for reason in Withheld),
    }
)
"""Only grow within one life; exported with the suffix `_total`."""
