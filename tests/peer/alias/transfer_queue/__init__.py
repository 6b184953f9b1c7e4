"""Stands in for the package TransferQueue in what `tests.peer.run` runs: every name leads to our adapter.

A Ray actor under the name of the peer's controller answers what its tests look up there, from our control plane.
"""

import sys
from types import SimpleNamespace
from typing import Any

import ray
import torch

import rljob_transfer_queue as ours
from rljob_transfer_queue import *  # noqa: F403 - the same names
from rljob_transfer_queue import dataloader, interface, kv_metadata, metadata, samplers

metadata.KVBatchMeta = kv_metadata.KVBatchMeta  # type: ignore[attr-defined]
_MODULES = {
    "client": ours.client,
    "dataloader": dataloader,
    "dataloader.streaming_dataset": dataloader,
    "interface": interface,
    "metadata": metadata,
    "sampler": samplers,
}
for _name, _module in _MODULES.items():
    sys.modules[f"{__name__}.{_name}"] = _module


class ControllerView:
    def __init__(self) -> None:
        self._calls = ours.get_client().calls

    def list_partitions(self) -> list[str]:
        return self._calls.get_partition_list()

    def clear_partition(self, partition: str) -> None:
        self._calls.clear_partition(partition)

    def get_config(self) -> dict[str, Any]:
        return {}

    def get_partition_snapshot(self, partition: str) -> SimpleNamespace | None:
        session = self._calls.session
        fields = sorted(session.fields(partition))
        found = session.states(partition, *(f"h:{name}" for name in fields))
        tags = session.list_keys(partition)
        if found is None or tags is None:
            return None
        numbers, produced = found
        status = torch.zeros(int(numbers.max(initial=-1)) + 1, len(fields), dtype=torch.int8)
        status[numbers] = torch.from_numpy(produced.astype("int8"))
        rows = {key: self._calls.kv_retrieve_meta(key, partition).global_indexes[0] for key in tags}
        return SimpleNamespace(
            keys_mapping=rows,
            global_indexes=set(numbers.tolist()),
            custom_meta={rows[key]: tag for key, tag in tags.items()},
            field_name_mapping={name: place for place, name in enumerate(fields)},
            production_status=status,
        )


_retained: list[Any] = []
"""Handles of actors: one without a handle ends."""


def init_with_view(conf: Any = None) -> Any:
    found = ours.init(conf)
    if ray.is_initialized():
        view: Any = ray.remote(ControllerView)
        name = {"name": "TransferQueueController", "namespace": "transfer_queue", "get_if_exists": True}
        _retained.append(view.options(num_cpus=0, **name).remote())
        ray.get(_retained[-1].list_partitions.remote())
    return found


init = init_with_view
