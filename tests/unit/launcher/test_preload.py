"""A thread before the fork has a name and stops the start."""

import threading

import pytest

from rljob_workers.launcher.preload import ThreadsBeforeForkError, require_single_thread, thread_names


def test_a_second_thread_is_refused_with_the_cure() -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    try:
        assert len(thread_names()) >= 2
        with pytest.raises(ThreadsBeforeForkError, match=r"OPENBLAS_NUM_THREADS.* to 1, or load what starts them"):
            require_single_thread()
    finally:
        end.set()
        thread.join()
