"""What must hold of control state and bytes, whatever happened: judged from the keys themselves.

For tests. Reads every server as its administrator, trusts no check of the queue's own and changes nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from rljob_api.spec.training import ClaimPolicy
from rljob_workers.transfer_queue.row_format import CHUNK_ID_BYTES, HEADER_BYTES, ROW, ChunkRef
from rljob_workers.transfer_queue.types import ForwardPolicy, QueueShape, Task, TaskKind
from tests.integration.transfer_queue.control_keys import Control
from tests.integration.transfer_queue.servers import Servers

_WHOLE = (ClaimPolicy.GROUP, ForwardPolicy.PARTITION)
_LETTERS = {"unready": "ur", "ready": "r", "leased": "c", "consumed": "d"}


def breaches(servers: Servers, shape: QueueShape) -> list[str]:
    """Every breach in a sentence. No one else may be at work meanwhile."""
    with servers.control.admin() as admin:
        control = Control(admin, shape)
        found = [*_rows(control), *_groups(control), *_capacity(control), *_tickets(control), *_left_over(control)]
        return [*found, *_bytes(control, servers)]


# --- rows ------------------------------------------------------------------------------------------------------------


def _rows(control: Control) -> list[str]:
    found: list[str] = []
    for r in control.partitions:
        for task in control.shape.tasks:
            found += (f"train_{r} {task.name}: {breach}" for breach in _task(control, r, task))
        found += (f"train_{r}: {breach}" for breach in _metas(control, r))
    return found


def _task(control: Control, r: int, task: Task) -> list[str]:
    letters = control.string(f"p:{r}:s:{task.name}").decode()
    if len(letters) != control.shape.rows_per_partition:
        return [f"{len(letters)} rows have a state"]
    listed, held = control.listed(r, task), [*control.leased(r, task), *control.batched(r, task)]
    found = [f"row {row} is held or listed twice" for row, times in Counter([*listed, *held]).items() if times > 1]
    for row, homes in enumerate(_homes(control, r, task, letters)):
        if len(homes) != 1 or letters[row] not in _LETTERS[homes[0]]:
            found.append(f"row {row} ({letters[row]}) is {' and '.join(homes) or 'nowhere'}")
    done = letters.count("d")
    if done != int(control.hash(f"p:{r}:done").get(task.name.encode(), 0)):
        found.append(f"{done} rows are consumed, the count says otherwise")
    if (r in control.places(f"q:ready:{task.name}")) != bool(listed):
        found.append(f"{len(listed)} rows are listed, the set of ready partitions says otherwise")
    if (r in control.places(f"q:finished:{task.name}")) != (done == len(letters)):
        found.append(f"{done} rows are consumed, the set of finished partitions says otherwise")
    return found


def _homes(control: Control, r: int, task: Task, letters: str) -> list[list[str]]:
    """Where each row is, by what says so: its fields, the ready list, leases and batches, its state."""
    num, needs = control.shape.samples_per_prompt, control.mask_of(task.needs)
    complete = (control.masks(r) & needs) == needs
    listed, leased, batched = (set(rows(r, task)) for rows in (control.listed, control.leased, control.batched))
    homes: list[list[str]] = []
    for row, letter in enumerate(letters):
        siblings = letters[row // num * num : row // num * num + num] if task.policy is ClaimPolicy.GROUP else letters
        waits_for_siblings = task.policy in _WHOLE and letter == "r" and siblings.strip("r") != ""
        at = {
            "unready": waits_for_siblings if complete[row] else letter == "u",
            "ready": row in listed,
            "leased": row in leased or (row in batched and letter != "d"),
            "consumed": letter == "d",
        }
        homes.append([name for name, here in at.items() if here])
    return homes


def _metas(control: Control, r: int) -> list[str]:
    """Rows name chunks of their partition that reach as far as the rows do, and each chunk counts its rows."""
    chunks, masks, found = control.chunks(r), control.masks(r), []
    counts: Counter[bytes] = Counter()
    for name in control.shape.fields:
        metas = np.frombuffer(control.string(f"p:{r}:f:{name}"), ROW)
        for row in np.flatnonzero(masks & control.mask_of([name])).tolist():
            meta = metas[row]
            chunk_id = bytes(meta["chunk"]).ljust(CHUNK_ID_BYTES, b"\0")
            counts[chunk_id] += 1
            chunk = chunks.get(chunk_id)
            if chunk is None or chunk.field != name or _end(meta, chunk) > chunk.num_bytes:
                found.append(f"{name} of row {row} lies in {chunk}")
    refs = {name: int(count) for name, count in control.hash(f"p:{r}:refs").items()}
    if refs != dict(counts) or set(refs) != set(chunks):
        found.append(f"{len(chunks)} chunks and their counts {sorted(refs.values())}, rows name {dict(counts)}")
    return found


def _end(meta: Any, chunk: ChunkRef) -> int:
    """Bytes of the chunk up to the row's end."""
    dtype: torch.dtype = getattr(torch, chunk.dtype)
    return HEADER_BYTES + (int(meta["offset"]) + int(meta["length"])) * dtype.itemsize * math.prod(chunk.inner_shape)


# --- groups, capacity, tickets ---------------------------------------------------------------------------------------


def _groups(control: Control) -> list[str]:
    found, drawn = [], Counter(control.places("q:front"))
    generated = control.mask_of(control.shape.generated_fields)
    num = control.shape.samples_per_prompt
    for r in control.partitions:
        whole = (control.masks(r) & generated) == generated
        for group, (state, attempt, prompt, _, rejected, refused, *_) in control.groups(r).items():
            drawn.update([prompt, *rejected])
            if not refused <= attempt <= len(rejected):
                found.append(f"train_{r} group {group}: {refused} refused, attempt {attempt}, {len(rejected)} rejected")
            mine = set(whole[group * num : (group + 1) * num].tolist())
            if mine != {state == b"p"}:
                found.append(f"train_{r} group {group} has state {state.decode()} and generated rows {mine}")
        recorded = {group * num + index for group in control.groups(r) for index in range(num)}
        if set(np.flatnonzero(control.masks(r)).tolist()) - recorded:
            found.append(f"train_{r}: rows of groups without a record have fields")
    found += [f"prompt {prompt} is drawn {times} times" for prompt, times in drawn.items() if times > 1]
    found += [f"prompt {prompt} is not drawn and has a partial" for prompt in control.partials if prompt not in drawn]
    return found + [f"prompt {prompt} is beyond the cursor" for prompt in drawn if prompt >= control.number("cursor")]


def _capacity(control: Control) -> list[str]:
    """Every place from the first partition to be consumed on is issued or open, and issued ones fit."""
    batch, first, end = control.shape.batch_size, _first_to_consume(control), control.number("next")
    places = set(range(first * batch, max(end, first * batch)))
    issued = {r * batch + group for r in control.partitions if r >= first for group in control.groups(r)}
    opened = set(control.places("q:open"))
    capacity = control.shape.capacity
    found = []
    if issued & opened or issued | opened != places:
        found.append(f"places {sorted(places)} are not made of issued {sorted(issued)} and open {sorted(opened)} ones")
    if len(issued) > capacity:
        found.append(f"{len(issued)} groups are issued, the capacity is {capacity}")
    return found


def _first_to_consume(control: Control) -> int:
    """Of any training task, from the recorded version to the published one."""
    tasks = [task.name for task in control.shape.tasks if task.kind is TaskKind.TRAINING and not task.publishes]
    for r in range(control.number("recorded"), control.number("published")):
        if any(control.string(f"p:{r}:s:{task}").strip(b"d") for task in tasks):
            return r
    return control.number("published")


def _tickets(control: Control) -> list[str]:
    """A ticket, its group, its owner's set and the list of returned groups agree."""
    batch = control.shape.batch_size
    tickets = {int(name): record for name, record in control.packed("q:tickets").items()}
    issued: dict[int, tuple[int, int]] = {}
    waiting: set[int] = set()
    for r in control.partitions:
        for group, (state, _, _, ticket, *_) in control.groups(r).items():
            if state == b"i":
                issued[ticket] = (r, group)
            if state == b"w":
                waiting.add(r * batch + group)
    found = []
    if {number: (record[0], record[1]) for number, record in tickets.items()} != issued:
        found.append(f"tickets {sorted(tickets)}, groups in work say {issued}")
    if waiting != set(control.places("q:again")):
        found.append(f"groups {sorted(waiting)} came back, the list says {control.places('q:again')}")
    owned = {(record[4].decode(), number) for number, record in tickets.items()}
    sets = _ticket_sets(control)
    if owned != sets or not {owner for owner, _ in owned} <= control.live:
        found.append(f"tickets {owned} are in sets {sets}; live are {control.live}")
    return found


def _ticket_sets(control: Control) -> set[tuple[str, int]]:
    keys: Any = control.admin.keys("q:tickets:*")
    members: Mapping[bytes, Any] = {key: control.admin.smembers(key) for key in keys}
    return {(key.decode().rsplit(":", 1)[1], int(number)) for key, numbers in members.items() for number in numbers}


# --- what is left over -----------------------------------------------------------------------------------------------


def _left_over(control: Control) -> list[str]:
    """Nothing grows with what is over: incarnations, leases, partitions."""
    found = []
    keys: Any = control.admin.keys("p:*")
    known = {*control.partitions, *control.places("q:garbage")}
    strays = sorted({key for key in keys if int(key.split(b":")[1]) not in known})
    if strays:
        found.append(f"keys of partitions that are gone: {strays}")
    callers = {name.decode() for name in control.hash("q:calls")}
    if not callers <= {*control.live, control.meta.get("admin", b"").decode()}:
        found.append(f"answers are kept for {callers - control.live}, who are not live")
    leases: Any = control.admin.zrange("q:leases", 0, -1)
    if {name.decode() for name in leases} != set(control.packed("q:lease")):
        found.append(f"leases {sorted(control.packed('q:lease'))} and those that expire differ: {leases}")
    owners = {owner.decode() for _, _, owner, _, _ in control.packed("q:lease").values()}
    if not owners <= control.live:
        found.append(f"leases of {owners - control.live}, who are not live")
    training = {task.name for task in control.shape.tasks if task.kind is TaskKind.TRAINING}
    if any(name.decode() in training for name, *_ in control.packed("q:lease").values()):
        found.append("a training task has a lease")
    return found


def _bytes(control: Control, servers: Servers) -> list[str]:
    """Units hold what the control state names, what a live incarnation may yet commit, and nothing else."""
    retained = [chunk for r in control.partitions for chunk in control.chunks(r).values()]
    retained += control.partials.values()
    garbage = [chunk for r in control.places("q:garbage") for chunk in control.chunks(r).values()]
    here = [chunk for chunk in retained if control.units.get(chunk.unit) == chunk.unit_generation]
    present = {index: _keys_on(servers, index) for index in range(len(servers.units))}
    found = [f"chunk {chunk} is not on its unit" for chunk in here if chunk.key not in present.get(chunk.unit, set())]
    named = Counter((chunk.unit, chunk.key) for chunk in [*retained, *garbage, *control.dead])
    found += [f"chunk {key} of unit {unit} is named {times} times" for (unit, key), times in named.items() if times > 1]
    for unit, keys in present.items():
        orphans = [key for key in keys if (unit, key) not in named and key.split(":")[1] not in control.live]
        found += [f"unit {unit} holds {key}, which nothing names" for key in sorted(orphans)]
    return found


def _keys_on(servers: Servers, index: int) -> set[str]:
    with servers.units[index].admin() as admin:
        keys: Any = admin.keys("*:*:*")
        return {key.decode() for key in keys}
