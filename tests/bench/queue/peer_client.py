"""A process with one client of the peer: its documented calls, timed."""

from __future__ import annotations

import time
from typing import Any

import torch
from tensordict import TensorDict
from transfer_queue import TransferQueueClient
from transfer_queue.utils.enum_utils import Role
from transfer_queue.utils.zmq_utils import ZMQServerInfo

from tests.bench.queue.channel import serve
from tests.bench.queue.client import BenchClient
from tests.bench.queue.workloads import Workload, make_columns, rows_between, wrong_rows


class PeerClient(BenchClient):
    """One partition per round. A put of several parts goes to the same partition."""

    def open(self, name: str, controller: dict[str, Any], units: list[dict[str, Any]], workload: dict[str, Any]) -> Any:
        self._workload = Workload(**workload)
        self._columns = make_columns(self._workload)
        step = self._workload.put_rows
        self._parts = [self._part(first, first + step) for first in range(0, self._workload.num_rows, step)]
        self._client = TransferQueueClient(name, _info(Role.CONTROLLER, controller))
        infos = {unit["id"]: _info(Role.STORAGE, unit) for unit in units}
        self._client.initialize_storage_manager("SimpleStorage", {"zmq_info": infos})
        self._got: list[TensorDict] = []
        return {}

    def put(self, turn: int) -> dict[str, Any]:
        began = time.perf_counter()
        for part in self._parts:
            self._client.put(part, partition_id=f"train_{turn}")
        return {"put": time.perf_counter() - began}

    def claim(self, turn: int, times: int, task: str) -> dict[str, Any]:
        seconds, meta_seconds = [], []
        for _ in range(times):
            began = time.perf_counter()
            meta = self._meta(turn, task)
            asked = time.perf_counter()
            self._got.append(self._client.get_data(meta))
            seconds.append(time.perf_counter() - began)
            meta_seconds.append(asked - began)
        return {"claim": seconds, "meta": meta_seconds}

    def drain(self, turn: int, start_at: float) -> dict[str, Any]:
        time.sleep(max(0.0, start_at - time.monotonic()))
        began, numbers, requests = time.monotonic(), [], 0
        while (meta := self._meta(turn, "read")).size:
            self._got.append(self._client.get_data(meta))
            numbers.extend(meta.global_indexes)
            requests += 1
        return {"began": began, "ended": time.monotonic(), "numbers": numbers, "requests": requests}

    def verify(self) -> dict[str, Any]:
        wrong = []
        for got in self._got:
            wrong += wrong_rows(self._columns, {field: list(got[field].unbind(0)) for field in self._columns})
        return {"wrong": wrong[:5], "rows": sum(got.batch_size[0] for got in self._got)}

    def finish(self, turn: int) -> dict[str, Any]:
        self._got.clear()
        return {}

    def clear(self, turn: int) -> dict[str, Any]:
        self._client.clear_partition(f"train_{turn}")
        return {}

    def give_back(self) -> dict[str, Any]:
        self._got.clear()
        return {}

    def _meta(self, turn: int, task: str) -> Any:
        return self._client.get_meta(
            data_fields=list(self._workload.fields),
            batch_size=self._workload.claim_rows,
            partition_id=f"train_{turn}",
            task_name=task,
        )

    def _part(self, first: int, last: int) -> TensorDict:
        """Dense where all lengths agree, else jagged: what the peer's own benchmark puts."""
        columns = {field: rows_between(column, first, last).nested() for field, column in self._columns.items()}
        return TensorDict(columns, batch_size=last - first)


def _info(role: Role, server: dict[str, Any]) -> ZMQServerInfo:
    return ZMQServerInfo(role=role, id=server["id"], ip=server["ip"], ports=server["ports"])


if __name__ == "__main__":
    torch.manual_seed(0)
    client = PeerClient()
    serve({"open": client.open, **client.handlers()})
