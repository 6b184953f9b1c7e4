"""The queue for code that was written for the PyPI package TransferQueue (as verl and Relax use it).

    import rljob_transfer_queue as tq                   was: import transfer_queue as tq

    tq.init({"control_redis": "redis://10.0.0.1:6379/0", "storage_units": ["redis://10.0.0.1:6380/0"]})
    client = tq.get_client()
    client.put(data, partition_id="train_0")
    meta = client.get_meta(["input_ids"], 64, "train_0", task_name="actor_train")
    batch = client.get_data(meta)
    client.clear_partition("train_0")

For users; nothing of rljob imports it. It has a control plane of its own (`lua/`) and our data plane; no pickle, no
Ray. What of the package is not here is refused with a sentence; docs/queue-compat.md has the table.
"""

try:
    import tensordict as _tensordict  # noqa: F401
except ImportError as error:
    raise ImportError("rljob_transfer_queue needs the package tensordict. Install rljob-transfer-queue.") from error

from rljob_transfer_queue.client import AsyncTransferQueueClient, TransferQueueClient
from rljob_transfer_queue.dataloader import StreamingDataLoader, StreamingDataset
from rljob_transfer_queue.errors import StorageKeyNotFoundError
from rljob_transfer_queue.interface import (
    async_kv_batch_get,
    async_kv_batch_get_by_meta,
    async_kv_batch_put,
    async_kv_clear,
    async_kv_list,
    async_kv_put,
    close,
    get_client,
    get_metrics_endpoint,
    init,
    kv_batch_get,
    kv_batch_get_by_meta,
    kv_batch_put,
    kv_clear,
    kv_list,
    kv_put,
    load_checkpoint,
    save_checkpoint,
)
from rljob_transfer_queue.kv_metadata import KVBatchMeta
from rljob_transfer_queue.metadata import BatchMeta
from rljob_transfer_queue.samplers import (
    BaseSampler,
    GRPOGroupNSampler,
    RankAwareSampler,
    SeqlenBalancedSampler,
    SequentialSampler,
)
from rljob_transfer_queue.settings import Servers

__all__ = [
    "AsyncTransferQueueClient",
    "BaseSampler",
    "BatchMeta",
    "GRPOGroupNSampler",
    "KVBatchMeta",
    "RankAwareSampler",
    "SeqlenBalancedSampler",
    "SequentialSampler",
    "Servers",
    "StorageKeyNotFoundError",
    "StreamingDataLoader",
    "StreamingDataset",
    "TransferQueueClient",
    "async_kv_batch_get",
    "async_kv_batch_get_by_meta",
    "async_kv_batch_put",
    "async_kv_clear",
    "async_kv_list",
    "async_kv_put",
    "close",
    "get_client",
    "get_metrics_endpoint",
    "init",
    "kv_batch_get",
    "kv_batch_get_by_meta",
    "kv_batch_put",
    "kv_clear",
    "kv_list",
    "kv_put",
    "load_checkpoint",
    "save_checkpoint",
]
