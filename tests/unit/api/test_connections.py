"""Connections of a port: which is late, which gives way for another, and that an answered one never does."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.serving.connections import Bounds, Connections, Waits
from tests.clock import Clock

BOUNDS = Bounds(most=4, request_seconds=5, reader_seconds=9)


@pytest.mark.parametrize(
    ("waits", "seconds", "is_late"),
    [
        pytest.param(Waits.REQUEST, 4.9, False, id="half a request is waited for"),
        pytest.param(Waits.REQUEST, 5, True, id="half a request is not waited for any longer"),
        pytest.param(Waits.READER, 8.9, False, id="an answer that is not read is waited for"),
        pytest.param(Waits.READER, 9, True, id="an answer that is never read is given up"),
        pytest.param(Waits.ANSWER, 1e9, False, id="an answer may take any time"),
        pytest.param(Waits.NEXT, 1e9, False, id="how long it is quiet between two requests the server decides"),
    ],
)
def test_only_a_client_that_owes_something_is_late(waits: Waits, seconds: float, is_late: bool) -> None:
    clock = Clock()
    connections: Connections[str] = Connections(BOUNDS, clock)
    connections.opened("one", "a")
    connections.waits("one", waits)
    clock.now += seconds
    assert connections.overdue() == (["one"] if is_late else [])


def test_a_byte_now_and_then_buys_no_time_and_the_next_request_has_its_own() -> None:
    clock = Clock()
    connections: Connections[str] = Connections(BOUNDS, clock)
    connections.opened("one", "a")
    for _ in range(5):
        clock.now += 1
        connections.waits("one", Waits.REQUEST)
    assert connections.overdue() == ["one"]
    connections.waits("one", Waits.ANSWER)
    connections.waits("one", Waits.REQUEST)
    assert connections.overdue() == []


@pytest.mark.parametrize(
    ("sources", "answered", "goes"),
    [
        pytest.param("aaab", "", 0, id="the oldest of the address that has the most"),
        pytest.param("abbb", "", 1, id="another address's half requests cost one that has a single one nothing"),
        pytest.param("aaaa", "01", 2, id="an answered one stays"),
        pytest.param("abcd", "", 0, id="the oldest, where all have as many"),
        pytest.param("aaaa", "0123", 4, id="the new one itself, where all others are answered"),
    ],
)
def test_one_too_many_closes(sources: str, answered: str, goes: int) -> None:
    connections: Connections[int] = Connections(BOUNDS, Clock())
    for index, source in enumerate(sources):
        assert connections.opened(index, source) is None
    for digit in answered:
        connections.waits(int(digit), Waits.ANSWER)
    assert connections.opened(4, "kubelet") == goes


events = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([None, *Waits])), max_size=60)


@given(events)
def test_the_bound_holds_and_no_answered_connection_gives_way(steps: list[tuple[str, Waits | None]]) -> None:
    connections: Connections[int] = Connections(BOUNDS, Clock())
    there: dict[int, tuple[str, Waits]] = {}
    for number, (source, waits) in enumerate(steps):
        there[number] = (source, Waits.REQUEST)
        gone = connections.opened(number, source)
        if gone is not None:
            waiting = Counter(source for source, what in there.values() if what is not Waits.ANSWER)
            assert there[gone][1] is not Waits.ANSWER
            assert waiting[there[gone][0]] == max(waiting.values())
            connections.closed(gone)
            del there[gone]
        elif waits is not None:
            connections.waits(number, waits)
            there[number] = (source, waits)
        assert len(connections) == len(there) <= BOUNDS.most
        assert set(connections.open()) == set(there)
