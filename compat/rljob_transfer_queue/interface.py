"""The module's own functions: `init`, `close`, `get_client`, and rows by the user's own keys (`kv_...`).

For users, from any thread. A process has one client, made by `init` or when it is first needed; a forked child gets its
own.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import torch
from tensordict import NonTensorStack, TensorDict

from rljob_transfer_queue.client import TransferQueueClient
from rljob_transfer_queue.kv_metadata import KVBatchMeta
from rljob_transfer_queue.session import Session
from rljob_transfer_queue.settings import DEFAULTS, Servers, Settings, find_servers, read_settings

Fields = TensorDict | Mapping[str, Any]

_lock = threading.RLock()
_servers: Servers | None = None
_client: TransferQueueClient | None = None
_process: int | None = None
"""Whose client it is: a forked child must not speak on its parent's connections."""
_owner = ""
"""Under this name the process sets the queue up; another one after a fork."""


def init(conf: Mapping[str, Any] | None = None) -> Mapping[str, Any] | None:
    """Connects this process to the queue; the first one with settings sets it up for all.

    tq.init({"control_redis": "redis://10.0.0.1:6379/0", "storage_units": ["redis://10.0.0.1:6380/0"],
             "controller": {"sampler": "GRPOGroupNSampler", "polling_mode": True}})

    Without URLs in `conf` the servers are those of the JSON file that RLJOB_ENDPOINTS names. Settings that differ from
    those in force are refused.
    """
    global _servers
    wanted, servers = read_settings(conf), find_servers(conf, os.environ)
    with _lock:
        _disconnect()
        _servers = servers
        found = _connect(servers).calls.session.configure((wanted or DEFAULTS).dump(), _owner)[0]
        if wanted is not None and wanted.dump() != found:
            _disconnect()
            raise ValueError(
                f"init: this queue was set up with {_described(found)}, and {_described(wanted.dump())} is wanted."
                " Call init() to take it as it is, or close() in the process that set it up."
            )
    return conf


def _connect(servers: Servers) -> TransferQueueClient:
    global _client, _process, _owner
    if _process != os.getpid():
        _process, _owner = os.getpid(), secrets.token_hex(6)
    _client = TransferQueueClient(f"process-{_process}", servers)
    return _client


def _disconnect() -> None:
    global _client
    client, _client = _client, None
    if client is not None and _process == os.getpid():
        client.close()


def _described(settings: bytes) -> str:
    read = Settings.load(settings)
    return f"sampler {read.sampler.name} {read.sampler.settings() or ''}".strip() + f", polling_mode {read.polling}"


def close() -> None:
    """Ends this process's connections. In the process that set the queue up it clears all partitions, too."""
    with _lock:
        try:
            if _client is not None and _process == os.getpid():
                _give_up(_client.calls.session)
        finally:
            _disconnect()


def _give_up(session: Session) -> None:
    if session.settings()[1] == _owner:
        for partition in session.partitions():
            session.clear_partition(partition)
        session.forget_settings(_owner)


def servers_of(config: Mapping[str, Any] | Servers | None) -> Servers:
    """Those that `config` names, else those of this process's `init`, else those of RLJOB_ENDPOINTS."""
    if isinstance(config, Servers):
        return config
    if config is not None and "control_redis" in config:
        return find_servers(config, os.environ)
    return _servers or find_servers(None, os.environ)


def get_client() -> TransferQueueClient:
    """This process's client; raises ValueError where `init` was not called and RLJOB_ENDPOINTS is not set."""
    with _lock:
        if _client is not None and _process == os.getpid():
            return _client
        return _connect(servers_of(None))


def kv_put(
    key: str,
    partition_id: str,
    fields: Fields | None = None,
    tag: Mapping[str, Any] | None = None,
    data_parser: None = None,
) -> KVBatchMeta:
    """One row by key: made where there is none, its fields replaced or added. `tag` adds to its tags."""
    if isinstance(fields, Mapping) and not isinstance(fields, TensorDict):
        fields = TensorDict({name: _one_row(value) for name, value in fields.items()}, batch_size=[1])
    return kv_batch_put([key], partition_id, fields, None if tag is None else [tag], data_parser)


def _one_row(value: Any) -> Any:  # noqa: ANN401 - whatever a TensorDict holds
    if isinstance(value, torch.Tensor):
        if value.is_nested:
            raise ValueError("kv_put: a nested tensor holds many rows. Use kv_batch_put.")
        return value.unsqueeze(0)
    return NonTensorStack(value)


def kv_batch_put(
    keys: Sequence[str],
    partition_id: str,
    fields: TensorDict | None = None,
    tags: Sequence[Mapping[str, Any]] | None = None,
    data_parser: None = None,
) -> KVBatchMeta:
    """Many rows by key; see `kv_put`."""
    calls = get_client().calls
    if fields is None and tags is None:
        raise ValueError("kv_batch_put: neither fields nor tags are given. Give at least one.")
    if fields is not None and fields.batch_size[0] != len(keys):
        raise ValueError(
            f"kv_batch_put: there are {len(keys)} keys and {fields.batch_size[0]} rows. Give a key for each."
        )
    if tags is not None and len(tags) != len(keys):
        raise ValueError(
            f"kv_batch_put: there are {len(keys)} keys and {len(tags)} tags. Give a tag for each, or none."
        )
    if len(set(keys)) != len(keys):
        raise ValueError("kv_batch_put: a key is there twice. Name each once.")
    meta = calls.kv_retrieve_meta(list(keys), partition_id, create=True)
    if tags is not None:
        meta.update_custom_meta([dict(tag) for tag in tags])
    if fields is not None:
        meta = calls.put(fields, meta, data_parser=data_parser)
    else:
        calls.set_custom_meta(meta)
    return KVBatchMeta(list(keys), meta.custom_meta, partition_id, meta.field_names, meta.extra_info)


def kv_batch_get(
    keys: Sequence[str] | str, partition_id: str, select_fields: Sequence[str] | str | None = None
) -> TensorDict:
    """Rows by key: `select_fields`, else the fields that all of them have."""
    calls = get_client().calls
    meta = calls.kv_retrieve_meta(keys, partition_id)
    if not meta.size:
        raise ValueError(f"kv_batch_get: {keys!r} were not found in partition {partition_id}. Put them first.")
    wanted = [select_fields] if isinstance(select_fields, str) else select_fields
    absent = sorted(set(wanted or ()) - set(meta.field_names))
    if absent or not meta.is_ready:
        raise ValueError(
            f"kv_batch_get: {', '.join(absent) or 'any field'} is not there for all of the keys; they share"
            f" {meta.field_names}. Select among these, or put it first."
        )
    return calls.get_data(meta if wanted is None else meta.select_fields(wanted))


def kv_batch_get_by_meta(meta: KVBatchMeta, select_fields: Sequence[str] | str | None = None) -> TensorDict:
    """The rows that `kv_put` or `kv_batch_put` returned: `select_fields`, else all fields that it names."""
    if meta.partition_id is None:
        raise ValueError("kv_batch_get_by_meta: meta has no partition_id. Set it.")
    wanted = [select_fields] if isinstance(select_fields, str) else select_fields
    missing = sorted(set(wanted or ()) - set(meta.fields or ()))
    if missing:
        raise ValueError(f"kv_batch_get_by_meta: select_fields: {missing} are not found among {meta.fields}.")
    return kv_batch_get(meta.keys, meta.partition_id, meta.fields if wanted is None else wanted)


def kv_list(partition_id: str | None = None) -> dict[str, dict[str, Any]]:
    """Partition -> key -> tag, of one partition or of all."""
    return get_client().calls.kv_list(partition_id)


def kv_clear(keys: Sequence[str] | str, partition_id: str) -> None:
    """Rows by key, and their bytes; keys that are not there do not matter."""
    calls = get_client().calls
    meta = calls.kv_retrieve_meta(keys, partition_id)
    if meta.size:
        calls.clear_samples(meta)


async def async_kv_put(*args: Any, **kwargs: Any) -> KVBatchMeta:  # noqa: ANN401 - passes them on
    """See `kv_put`."""
    return await asyncio.to_thread(partial(kv_put, *args, **kwargs))


async def async_kv_batch_put(*args: Any, **kwargs: Any) -> KVBatchMeta:  # noqa: ANN401 - passes them on
    """See `kv_batch_put`."""
    return await asyncio.to_thread(partial(kv_batch_put, *args, **kwargs))


async def async_kv_batch_get(*args: Any, **kwargs: Any) -> TensorDict:  # noqa: ANN401 - passes them on
    """See `kv_batch_get`."""
    return await asyncio.to_thread(partial(kv_batch_get, *args, **kwargs))


async def async_kv_batch_get_by_meta(*args: Any, **kwargs: Any) -> TensorDict:  # noqa: ANN401 - passes them on
    """See `kv_batch_get_by_meta`."""
    return await asyncio.to_thread(partial(kv_batch_get_by_meta, *args, **kwargs))


async def async_kv_list(partition_id: str | None = None) -> dict[str, dict[str, Any]]:
    """See `kv_list`."""
    return await asyncio.to_thread(kv_list, partition_id)


async def async_kv_clear(keys: Sequence[str] | str, partition_id: str) -> None:
    """See `kv_clear`."""
    await asyncio.to_thread(kv_clear, keys, partition_id)


def save_checkpoint(*_: Any, **__: Any) -> NoReturn:  # noqa: ANN401 - takes what the peer's takes
    """Refused: rows are not saved."""
    raise NotImplementedError(
        "save_checkpoint: rows of this queue are not saved to files. Keep what you need in your own checkpoint, or"
        " run a job of rljob, which restores its queue."
    )


def load_checkpoint(*_: Any, **__: Any) -> NoReturn:  # noqa: ANN401 - takes what the peer's takes
    """Refused: rows are not saved."""
    raise NotImplementedError("load_checkpoint: rows of this queue are not saved to files. Put them again.")


def get_metrics_endpoint() -> None:
    """None: there is no metrics server; scrape the Redis servers."""
    return
