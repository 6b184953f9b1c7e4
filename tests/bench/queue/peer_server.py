"""A controller or a storage unit of the peer in a plain process: its class without ray's actor around it.

The peer runs both as ray actors, which speak ZMQ themselves. Without ray's own processes on the same few cores they can
only be faster, so this is in the peer's favour.
"""

from __future__ import annotations

from typing import Any

from tests.bench.queue.channel import serve

_retained: list[Any] = []


def _describe(server: Any) -> dict[str, Any]:
    _retained.append(server)
    info = server.zmq_server_info
    return {"id": info.id, "ip": info.ip, "ports": info.ports}


def _controller() -> dict[str, Any]:
    from transfer_queue.controller import TransferQueueController

    plain = TransferQueueController.__ray_metadata__.modified_class
    return _describe(plain(polling_mode=True))  # an empty answer at the end instead of an error after a wait


def _unit() -> dict[str, Any]:
    from transfer_queue.storage.simple_storage import SimpleStorageUnit

    plain = SimpleStorageUnit.__ray_metadata__.modified_class
    return _describe(plain(config={"total_storage_size": None, "num_data_storage_units": 1}))


if __name__ == "__main__":
    serve({"controller": _controller, "unit": _unit})
