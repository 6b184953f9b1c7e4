"""What the adapter raises beyond ValueError and TypeError for bad input.

QueueError (of `transfer_queue.errors`: a server that does not answer, no memory left, damaged bytes)
├── Mismatch                   servers that are not the queue's own, or storage units in another order
└── StorageKeyNotFoundError    rows that were put are not there any more
TimeoutError                   not enough rows within the time that `get_meta` waits
RuntimeError                   a client that was closed, or that belongs to another process
"""

from __future__ import annotations

from rljob_workers.transfer_queue.errors import QueueError


class StorageKeyNotFoundError(QueueError):
    """The rows' bytes are gone: cleared meanwhile, or their storage unit came back empty."""
