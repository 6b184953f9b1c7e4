"""The clients: what the package TransferQueue calls `TransferQueueClient` and `AsyncTransferQueueClient`.

For users. Every call is there twice: `put` blocks, `async_put` leaves the event loop alone. Decides nothing itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NoReturn, TypeVar

import torch
from tensordict import TensorDict

from rljob_transfer_queue.calls import BlockingCalls
from rljob_transfer_queue.metadata import BatchMeta
from rljob_transfer_queue.settings import Servers

THREADS = 8
"""Calls of one client at the same time; their requests to the servers go one by one."""
WAITS = 256
"""Claims of one client that may wait at the same time: in threads of their own, for others bring what they wait for."""

T = TypeVar("T")


class AsyncTransferQueueClient:
    """For asyncio; calls run in threads of the client's own, so that one that waits for rows holds up no other.

    client = AsyncTransferQueueClient("rollout-0")
    meta = await client.async_put(data, partition_id="train_0")
    meta = await client.async_get_meta(["input_ids"], 8, "train_0", task_name="actor_train")
    data = await client.async_get_data(meta)
    """

    def __init__(self, client_id: str, controller_info: Servers | None = None) -> None:
        """Connects when first used; without `controller_info` to the servers of RLJOB_ENDPOINTS."""
        if controller_info is not None and not isinstance(controller_info, Servers):
            raise TypeError(
                f"controller_info: {type(controller_info).__name__} names no servers of this queue. Leave it out and"
                " set RLJOB_ENDPOINTS, or use init(...) and get_client()."
            )
        self.client_id = client_id
        self.calls = BlockingCalls(client_id, controller_info)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="rljob-compat")
        self._waits = ThreadPoolExecutor(WAITS, thread_name_prefix="rljob-compat-wait")

    def close(self) -> None:
        """Refuses calls from now on, claims that wait too, and lets the one under way end; may be called twice."""
        self.calls.session.close()
        self._threads.shutdown()
        self._waits.shutdown()

    def initialize_storage_manager(self, manager_type: str, config: Mapping[str, Any]) -> NoReturn:  # noqa: ARG002
        """Refused: the storage units stand in `init` or RLJOB_ENDPOINTS."""
        raise ValueError(
            f"initialize_storage_manager: {manager_type} cannot be chosen here, since rows lie in the storage units"
            " that init or RLJOB_ENDPOINTS names. Drop this call."
        )

    async def _run(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:  # noqa: ANN401 - passes them on
        return await self._begin(self._threads, partial(work, *args, **kwargs))

    def _begin(self, threads: ThreadPoolExecutor, work: Callable[[], T]) -> asyncio.Future[T]:
        try:
            return asyncio.get_running_loop().run_in_executor(threads, work)
        except RuntimeError:
            # Threads that have ended take no calls, and would raise an error of their own.
            self.calls.session.control.require_open()
            raise

    async def async_get_meta(self, *args: Any, **kwargs: Any) -> BatchMeta:  # noqa: ANN401 - passes them on
        """See `BlockingCalls.get_meta`."""
        return await self._begin(self._waits, partial(self.calls.get_meta, *args, **kwargs))

    async def async_put(self, *args: Any, **kwargs: Any) -> BatchMeta:  # noqa: ANN401 - passes them on
        """See `BlockingCalls.put`."""
        return await self._run(self.calls.put, *args, **kwargs)

    async def async_get_data(self, metadata: BatchMeta) -> TensorDict:
        """See `BlockingCalls.get_data`."""
        return await self._run(self.calls.get_data, metadata)

    async def async_set_custom_meta(self, metadata: BatchMeta) -> None:
        """See `BlockingCalls.set_custom_meta`."""
        await self._run(self.calls.set_custom_meta, metadata)

    async def async_clear_partition(self, partition_id: str) -> None:
        """See `BlockingCalls.clear_partition`."""
        await self._run(self.calls.clear_partition, partition_id)

    async def async_clear_samples(self, metadata: BatchMeta) -> None:
        """See `BlockingCalls.clear_samples`."""
        await self._run(self.calls.clear_samples, metadata)

    async def async_get_consumption_status(
        self, task_name: str, partition_id: str
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """See `BlockingCalls.get_consumption_status`."""
        return await self._run(self.calls.get_consumption_status, task_name, partition_id)

    async def async_get_production_status(
        self, data_fields: Sequence[str], partition_id: str
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """See `BlockingCalls.get_production_status`."""
        return await self._run(self.calls.get_production_status, data_fields, partition_id)

    async def async_check_consumption_status(self, task_name: str, partition_id: str) -> bool:
        """See `BlockingCalls.check_consumption_status`."""
        return await self._run(self.calls.check_consumption_status, task_name, partition_id)

    async def async_check_production_status(self, data_fields: Sequence[str], partition_id: str) -> bool:
        """See `BlockingCalls.check_production_status`."""
        return await self._run(self.calls.check_production_status, data_fields, partition_id)

    async def async_reset_consumption(self, partition_id: str, task_name: str | None = None) -> bool:
        """See `BlockingCalls.reset_consumption`."""
        return await self._run(self.calls.reset_consumption, partition_id, task_name)

    async def async_get_partition_list(self) -> list[str]:
        """See `BlockingCalls.get_partition_list`."""
        return await self._run(self.calls.get_partition_list)

    async def async_kv_retrieve_meta(self, *args: Any, **kwargs: Any) -> BatchMeta:  # noqa: ANN401 - passes them on
        """See `BlockingCalls.kv_retrieve_meta`."""
        return await self._run(self.calls.kv_retrieve_meta, *args, **kwargs)

    async def async_kv_retrieve_keys(self, *args: Any, **kwargs: Any) -> list[str]:  # noqa: ANN401 - passes them on
        """See `BlockingCalls.kv_retrieve_keys`."""
        return await self._run(self.calls.kv_retrieve_keys, *args, **kwargs)

    async def async_kv_list(self, partition_id: str | None = None) -> dict[str, dict[str, Any]]:
        """See `BlockingCalls.kv_list`."""
        return await self._run(self.calls.kv_list, partition_id)


class TransferQueueClient(AsyncTransferQueueClient):
    """The same, and every call blocking too.

    client = TransferQueueClient("trainer-0")
    meta = client.put(data, partition_id="train_0")
    meta = client.get_meta(["input_ids"], 8, "train_0", task_name="actor_train")
    data = client.get_data(meta)
    client.clear_partition("train_0")
    """

    def __init__(self, client_id: str, controller_info: Servers | None = None) -> None:
        super().__init__(client_id, controller_info)
        calls = self.calls
        self.get_meta = calls.get_meta
        self.put = calls.put
        self.get_data = calls.get_data
        self.set_custom_meta = calls.set_custom_meta
        self.clear_partition = calls.clear_partition
        self.clear_samples = calls.clear_samples
        self.get_consumption_status = calls.get_consumption_status
        self.get_production_status = calls.get_production_status
        self.check_consumption_status = calls.check_consumption_status
        self.check_production_status = calls.check_production_status
        self.reset_consumption = calls.reset_consumption
        self.get_partition_list = calls.get_partition_list
        self.kv_retrieve_meta = calls.kv_retrieve_meta
        self.kv_retrieve_keys = calls.kv_retrieve_keys
        self.kv_list = calls.kv_list
