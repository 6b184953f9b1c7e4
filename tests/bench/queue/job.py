"""Our queue for a benchmark: servers as the product starts them, an opened epoch, and what a coordinator does.

For the main process: clients are processes of their own and are given `endpoints` and an incarnation.
"""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from pathlib import Path

from rljob_api.names import Epoch, Lineage, Role, WeightVersion
from rljob_api.wire.identity import Endpoints, Incarnation, RankKey, WeightId
from rljob_workers.transfer_queue.admin import QueueAdmin
from rljob_workers.transfer_queue.types import QueueShape
from tests.bench.queue.servers import RedisServers, Transport


class OurJob:
    """Epoch 1 is open."""

    def __init__(self, transport: Transport, num_units: int, program: Path | None, shape: QueueShape) -> None:
        self._stack = ExitStack()
        self._incarnations: list[Incarnation] = []
        try:
            self.servers = RedisServers(transport, num_units, program)
            self._stack.callback(self.servers.close)
            self.admin = QueueAdmin(self.servers.endpoints, shape)
            self._stack.callback(self.admin.close)
            self.admin.open_server(0)
            self.admin.raise_epoch(Epoch(1), "bench", "a benchmark", None)
        except BaseException:
            self._stack.close()
            raise

    @property
    def endpoints(self) -> Endpoints:
        return self.servers.endpoints

    def close(self) -> None:
        self._stack.close()

    def begin_incarnation(self, role: Role = Role.ACTOR) -> Incarnation:
        key = RankKey(role=role, replica=len(self._incarnations))
        incarnation = Incarnation(key=key, epoch=Epoch(1), generation=0, id=secrets.token_hex(6))
        self.admin.begin_incarnation(incarnation)
        self._incarnations.append(incarnation)
        return incarnation

    def publish(self, version: int) -> None:
        """Partition `version - 1` is trained and recorded: nothing needs it any more."""
        weight = WeightId(lineage=Lineage(1), version=WeightVersion(version))
        self.admin.publish(self._incarnations[0], weight, f"publish-{version}")
        self.admin.record(self._incarnations[0], weight, f"{version}", {}, f"record-{version}")
