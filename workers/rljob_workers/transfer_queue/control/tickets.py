"""The binary form of tickets in answers of the control Redis, and the table of draws as a checkpoint keeps it.

Pure. For `client`, and for the coordinator, which reads the table of a checkpoint.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import orjson

from rljob_api.names import RolloutId
from rljob_workers.transfer_queue.types import Ticket

_TICKET = struct.Struct("<6I")


def parse_tickets(packed: bytes) -> list[Ticket]:
    """Ticket for ticket, in the order of the answer."""
    return [
        Ticket(number, RolloutId(rollout_id), group, attempt, prompt_index, bool(alone))
        for number, rollout_id, group, attempt, prompt_index, alone in _TICKET.iter_unpack(packed)
    ]


def table_of_draws(cursor: int, front: Sequence[bytes], draws: bytes, kills: Sequence[bytes]) -> bytes:
    """As JSON. `front`: prompts drawn next; `draws`: a JSON list; `kills`: prompt, count, prompt, count..."""
    counts = {prompt.decode(): int(count) for prompt, count in zip(kills[::2], kills[1::2], strict=True)}
    return orjson.dumps(
        {
            "cursor": cursor,
            "front": [int(prompt) for prompt in front],
            # An empty list of Lua is an empty object.
            "draws": orjson.loads(draws) or [],
            "kills": counts,
        }
    )


def is_table_of_draws(text: bytes) -> bool:
    """Whether a file of a checkpoint is what `table_of_draws` writes."""
    try:
        table = orjson.loads(text)
    except ValueError:
        return False
    kinds = {"cursor": int, "front": list, "draws": list, "kills": dict}
    return isinstance(table, dict) and all(isinstance(table.get(name), kind) for name, kind in kinds.items())
