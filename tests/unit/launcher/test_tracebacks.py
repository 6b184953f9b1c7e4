"""The exception that a process has died of, as servers of one and of several processes log it."""

import pytest

from rljob_workers.launcher.engine_deaths import LONGEST_SENTENCE, died_of, killed_itself

SCHEDULER = """
[2026-11-24 00:07:36] Load weight begin. avail mem=21.61 GB
[2026-11-24 00:07:36 TP0] Scheduler hit an exception: Traceback (most recent call last):
  File "/opt/env/lib/python3.11/site-packages/sglang/srt/managers/scheduler.py", line 6362, in run_scheduler_process
    scheduler = Scheduler(server_args, port_args)
                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/opt/env/lib/python3.11/site-packages/sglang/srt/models/gemma2.py", line 231, in __init__
    hidden_act=config.hidden_act,
               ^^^^^^^^^^^^^^^^^^^
  File "/opt/env/lib/python3.11/site-packages/transformers/configuration_utils.py", line 661, in __getattribute__
    return super().__getattribute__(key)
AttributeError: 'Gemma2Config' object has no attribute 'hidden_act'

[2026-11-24 00:07:36] Received sigquit from a child process. It usually means the child failed.
[2026-11-24 00:07:36] kill_process_tree called: parent_pid=29665, include_parent=True, pid=29665
"""
LOST_A_SCHEDULER = """
Traceback (most recent call last):
  File "/opt/env/lib/python3.11/site-packages/sglang/srt/entrypoints/engine.py", line 2028, in _wait
    data = pipe.recv()
EOFError
"""
CHAINED = """
Traceback (most recent call last):
  File "/srv/model/load.py", line 3, in read
    open(path)
FileNotFoundError: [Errno 2] No such file or directory: 'config.json'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/srv/model/load.py", line 5, in read
    raise OSError("no model there") from error
OSError: no model there
"""
EVERY_LINE = """
[rank1]: Traceback (most recent call last):
[rank1]:   File "/srv/run.py", line 9, in <module>
[rank1]:     main()
[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
"""
GROUP = """
  + Exception Group Traceback (most recent call last):
  |   File "/srv/serve.py", line 4, in <module>
  |     asyncio.run(main())
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/srv/serve.py", line 2, in main
    |     raise ValueError("no such flag")
    | ValueError: no such flag
    +------------------------------------
"""
STRAY = """
Traceback (most recent call last):
  File "/srv/run.py", line 9, in main
INFO: 127.0.0.1 asked
    check()
[2026-11-24 00:07:36] another process says something
KeyError: 'lm_head.weight'
"""
PYDANTIC = """
Traceback (most recent call last):
  File "/srv/run.py", line 9, in main
    check()
pydantic_core._pydantic_core.ValidationError: 1 validation error for ServerArgs
tp_size
  Input should be greater than 0 [type=greater_than]
"""
CRASHED = """
Fatal Python error: Segmentation fault

Current thread 0x00007f (most recent call first):
  File "/srv/run.py", line 9 in main
"""
FLAGS = "usage: launch_server.py [-h]\nlaunch_server.py: error: unrecognized arguments: --foo\n"
CUT_OFF = "Traceback (most recent call last):\n" + '  File "/srv/run.py", line 9, in main\n'


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        pytest.param(
            SCHEDULER,
            "AttributeError: 'Gemma2Config' object has no attribute 'hidden_act' "
            "(sglang/srt/models/gemma2.py:231, in __init__)",
            id="a record of SGLang's scheduler; the place is not the accessor that every attribute goes through",
        ),
        pytest.param(
            SCHEDULER + LOST_A_SCHEDULER,
            "AttributeError: 'Gemma2Config' object has no attribute 'hidden_act' "
            "(sglang/srt/models/gemma2.py:231, in __init__)",
            id="not what the process raises that has lost it",
        ),
        pytest.param(
            LOST_A_SCHEDULER,
            "EOFError (sglang/srt/entrypoints/engine.py:2028, in _wait)",
            id="unless there is nothing else",
        ),
        pytest.param(CHAINED, "OSError: no model there (/srv/model/load.py:5, in read)", id="the last of a chain"),
        pytest.param(
            EVERY_LINE,
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. (/srv/run.py:9, in <module>)",
            id="a prefix on every line",
        ),
        pytest.param(GROUP, "ValueError: no such flag (/srv/serve.py:2, in main)", id="within a group"),
        pytest.param(STRAY, "KeyError: 'lm_head.weight' (/srv/run.py:9, in main)", id="among lines of other processes"),
        pytest.param(
            PYDANTIC,
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ServerArgs tp_size "
            "Input should be greater than 0 [type=greater_than] (/srv/run.py:9, in main)",
            id="what a message announces",
        ),
        pytest.param(CRASHED, "Fatal Python error: Segmentation fault", id="a crash"),
        pytest.param(FLAGS, None, id="no traceback: the last line says it"),
        pytest.param(CUT_OFF, None, id="killed while it wrote"),
        pytest.param("", None, id="no words"),
    ],
)
def test_the_exception_and_its_place(log: str, expected: str | None) -> None:
    raised = died_of(log)
    assert (raised.sentence if raised is not None else None) == expected


def test_a_request_that_failed_long_ago_is_not_what_a_server_has_died_of() -> None:
    log = EVERY_LINE + "INFO: 200 OK\n" * 50
    assert died_of(log) is not None
    assert died_of(log, last_lines=50) is None
    assert died_of(log + SCHEDULER, last_lines=50) is not None


def test_a_long_message_is_cut() -> None:
    raised = died_of("Traceback (most recent call last):\nValueError: " + "x" * 5000)
    assert raised is not None
    assert len(raised.sentence) == LONGEST_SENTENCE


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        pytest.param(SCHEDULER, True, id="SGLang, whose scheduler has died"),
        pytest.param(
            CHAINED + "Load weight begin. avail mem=21.61 GB\n", False, id="an exception that it has survived"
        ),
    ],
)
def test_who_killed_it(log: str, expected: bool) -> None:
    assert killed_itself(log) == expected
