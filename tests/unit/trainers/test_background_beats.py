"""Pulses are given while a block runs, and only then, and not for ever."""

from __future__ import annotations

import threading

import pytest

from rljob_workers.trainers import data_parallel
from rljob_workers.trainers.data_parallel import BackgroundBeats, GlooGroup, NoCounter, Places, host_store


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_parallel, "BEAT_SECONDS", 0.001)


def test_signs_are_given_by_another_thread_until_the_block_ends() -> None:
    given = threading.Semaphore(0)
    threads: set[int] = set()

    def give(waiting_for: str) -> None:
        assert waiting_for == "the others"
        threads.add(threading.get_ident())
        given.release()

    with BackgroundBeats(give, "the others", limit_seconds=600):
        for _ in range(3):
            assert given.acquire(timeout=60)
    alive = {thread.ident for thread in threading.enumerate()}
    assert threads.isdisjoint(alive), "its thread is gone with the block"


def test_signs_end_with_a_block_that_fails() -> None:
    before = threading.active_count()
    with pytest.raises(RuntimeError, match="gone"), BackgroundBeats(lambda _: None, "the others", limit_seconds=600):
        raise RuntimeError("gone")
    assert threading.active_count() == before


def test_a_block_that_lasts_longer_than_the_limit_falls_silent() -> None:
    signs = BackgroundBeats(lambda _: None, "the others", limit_seconds=0)
    with signs:
        signs._thread.join(60)
        assert not signs._thread.is_alive()


def test_a_block_of_many_passes_may_last_as_many_times_as_long() -> None:
    given = threading.Semaphore(0)
    places = Places(host_store("127.0.0.1", timeout_seconds=60).store, 0, [0])
    group = GlooGroup(0, [0], 1e-9, places, lambda _: given.release(), NoCounter())
    with group.collective("a schedule", passes=10**12):
        assert given.acquire(timeout=60)
