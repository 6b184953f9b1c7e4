"""Samples and updates at one server's gate."""

from __future__ import annotations

import asyncio

import pytest

from rljob_workers.engines.sglang.weight_update import Gate, Recalled

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_while_it_is_closed_no_one_comes_in_and_then_all_do() -> None:
    gate, inside = Gate(), []

    async def pass_through(name: int) -> None:
        async with gate.passed():
            inside.append(name)

    async with gate.closed():
        waiting = [asyncio.create_task(pass_through(name)) for name in range(3)]
        await settle()
        assert inside == []
    await asyncio.gather(*waiting)
    assert inside == [0, 1, 2]


async def test_it_is_vacant_when_the_last_one_has_left_in_whatever_way() -> None:
    gate, leave = Gate(), asyncio.Event()

    async def stay() -> None:
        async with gate.passed():
            await leave.wait()

    staying, given_up = asyncio.create_task(stay()), asyncio.create_task(stay())
    await settle()
    vacant = asyncio.create_task(gate.vacant())
    given_up.cancel()
    await settle()
    assert not vacant.done()
    leave.set()
    await staying
    await asyncio.wait_for(vacant, 10)


async def test_who_gives_up_at_the_closed_gate_was_never_inside() -> None:
    gate = Gate()

    async def stay() -> None:
        async with gate.passed():
            raise AssertionError("it came in")

    async with gate.closed():
        waiting = asyncio.create_task(stay())
        await settle()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    await gate.vacant()


async def test_one_update_at_a_time() -> None:
    gate, order = Gate(), []

    async def update(name: str) -> None:
        async with gate.closed():
            order.append(f"{name} begins")
            await asyncio.sleep(0)
            order.append(f"{name} ends")

    await asyncio.gather(update("a"), update("b"))
    assert order == ["a begins", "a ends", "b begins", "b ends"]


async def test_a_recall_ends_the_wait_for_first_tokens_and_no_one_else_s() -> None:
    gate, reported, released = Gate(), [], asyncio.Event()

    async def draw(name: str, first_token: asyncio.Event) -> None:
        try:
            async with gate.unbegun():
                await first_token.wait()
            await released.wait()
            reported.append(f"{name} ends")
        except Recalled:
            reported.append(f"{name} is recalled")

    has_one = asyncio.Event()
    has_one.set()
    drawing = [asyncio.create_task(draw("begun", has_one)), asyncio.create_task(draw("waiting", asyncio.Event()))]
    await settle()
    gate.recall()
    await settle()
    released.set()
    await asyncio.gather(*drawing)
    assert reported == ["waiting is recalled", "begun ends"]


async def test_who_is_given_up_while_it_has_no_token_is_not_recalled() -> None:
    gate = Gate()

    async def draw() -> None:
        async with gate.unbegun():
            await asyncio.Event().wait()

    drawing = asyncio.create_task(draw())
    await settle()
    drawing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await drawing
    gate.recall()


async def test_what_is_waited_for_may_time_out_by_itself() -> None:
    gate = Gate()
    with pytest.raises(TimeoutError):
        async with gate.unbegun():
            raise TimeoutError


async def test_what_is_confined_to_a_version_is_given_up_before_the_next_one() -> None:
    gate, reported = Gate(), []

    async def draw() -> None:
        try:
            async with gate.passed(), gate.confined():
                try:
                    await asyncio.Event().wait()
                finally:
                    await asyncio.sleep(0.01)  # its connection is closed
                    reported.append("its request is given up")
        except Recalled:
            reported.append("it is recalled")

    drawing = asyncio.create_task(draw())
    await settle()
    gate.recall()
    await settle()
    assert reported == []
    async with gate.closed():
        await gate.recall_confined()
        assert reported[0] == "its request is given up"
    await drawing
    assert reported == ["its request is given up", "it is recalled"]
    await gate.vacant()
    await gate.recall_confined()
