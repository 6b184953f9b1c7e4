from __future__ import annotations

import json
import struct

from rljob_api.names import RolloutId
from rljob_workers.transfer_queue.types import Ticket, parse_tickets, table_of_draws


def test_tickets_come_in_the_order_of_the_answer() -> None:
    packed = struct.pack("<7Ii", 9, 1, 2, 3, 4, 1, 2, 1) + struct.pack("<7Ii", 8, 0, 0, 0, 5, 0, 0, -2)
    assert parse_tickets(packed) == [
        Ticket(9, RolloutId(1), 2, 3, 4, alone=True, refused=2, put_off=1),
        Ticket(8, RolloutId(0), 0, 0, 5, alone=False, put_off=-2),
    ]


def test_the_table_of_draws_is_json() -> None:
    table = table_of_draws(12, [b"3", b"1"], b'[{"rollout":0}]', [b"7", b"2", b"9", b"1"])
    assert json.loads(table) == {"cursor": 12, "front": [3, 1], "draws": [{"rollout": 0}], "kills": {"7": 2, "9": 1}}


def test_an_empty_list_of_lua_is_a_list() -> None:
    assert json.loads(table_of_draws(0, [], b"{}", []))["draws"] == []
