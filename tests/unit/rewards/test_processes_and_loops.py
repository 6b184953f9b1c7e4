"""Rewards that fork, spawn, wait for signals or run event loops: each row of the table in docs/rewards.md.

Called as a job calls them: by threads of a process in which nothing else is prepared for it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

WORKS = "[1.0, 1.0]"

ROOM = """
import sys
sys.path.insert(0, sys.argv[1])
from rljob_api.spec.rollout import RewardFunctionSpec
from rljob_workers.rewards import Answer, RewardError
from rljob_workers.rewards.custom import CustomReward
from rljob_workers.user_processes import begin_from_a_server, run_and_end_all

def work():
    begin_from_a_server()
    reward = CustomReward.from_spec(RewardFunctionSpec(function="users:right", path=sys.argv[1], timeout_seconds=100))
    group = [Answer("p", text, "a", 0, place) for place, text in enumerate("aa")]
    try:
        (outcome,) = reward.score_groups([group])
    except RewardError as error:
        outcome = [error]
    print([str(one) if isinstance(one, RewardError) else one for one in outcome], flush=True)

run_and_end_all(work)
"""

HEAD = """
import asyncio, multiprocessing, os, signal, subprocess, sys
from concurrent.futures import ProcessPoolExecutor

def same(pair):
    return float(pair[0] == pair[1])

def pairs(answers):
    return [(answer.response, answer.label) for answer in answers]

"""

ROWS = {
    "a program with a time limit": """
def right(answers):
    return [float(subprocess.run(["test", a, "=", b], timeout=60).returncode == 0) for a, b in pairs(answers)]
""",
    "a program that goes on": """
helper = subprocess.Popen(["sleep", "600"])
def right(answers):
    return [same(pair) for pair in pairs(answers)]
""",
    "a pool of the module": """
pool = ProcessPoolExecutor(1)
def right(answers):
    return list(pool.map(same, pairs(answers)))
""",
    "a pool of the first call": """
def right(answers):
    with ProcessPoolExecutor(1) as pool:
        return list(pool.map(same, pairs(answers)))
""",
    "multiprocessing.Pool": """
def right(answers):
    with multiprocessing.Pool(1) as pool:
        return pool.map(same, pairs(answers))
""",
    "multiprocessing.Pool of the module": """
pool = multiprocessing.Pool(1)
def right(answers):
    return pool.map(same, pairs(answers))
""",
    "a Process of the module": """
def compare(pipe):
    while True:
        pipe.send(same(pipe.recv()))
ours, theirs = multiprocessing.Pipe()
multiprocessing.Process(target=compare, args=(theirs,)).start()
def right(answers):
    return [(ours.send(pair), ours.recv())[1] for pair in pairs(answers)]
""",
    "a context that is forked": """
pool = multiprocessing.get_context("fork").Pool(1)
def right(answers):
    return pool.map(same, pairs(answers))
""",
    "another start method": """
multiprocessing.set_start_method("spawn", force=True)
def right(answers):
    with multiprocessing.Pool(1) as pool:
        return pool.map(same, pairs(answers))
""",
    "os.fork": """
def right(answers):
    child = os.fork()
    if child == 0:
        os._exit(7)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return [float(code == 7)] * len(answers)
""",
    "asyncio.run in a plain function": """
async def later(answers):
    await asyncio.sleep(0)
    return [same(pair) for pair in pairs(answers)]
def right(answers):
    return asyncio.run(later(answers))
""",
    "an async function": """
async def right(answers):
    process = await asyncio.create_subprocess_exec("true")
    return [float(await process.wait() == 0)] * len(answers)
""",
}


def outcome(folder: Path, code: str) -> str:
    (folder / "users.py").write_text(HEAD + code)
    done = subprocess.run(
        [sys.executable, "-c", ROOM, str(folder)], stdout=subprocess.PIPE, text=True, timeout=120, check=False
    )
    return done.stdout.strip()


@pytest.mark.parametrize("row", ROWS)
def test_what_works(row: str, tmp_path: Path) -> None:
    """The end of its pipe comes, too: nothing is left that holds it."""
    assert outcome(tmp_path, ROWS[row]) == WORKS


def test_semaphores_are_unlinked(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The folder of shared memory is the machine's: what a trial leaves in it stays to the next boot."""
    code = f"""
lock = multiprocessing.Lock()
pool = ProcessPoolExecutor(1)
def right(answers):
    open({str(tmp_path / "name")!r}, "w").write(lock._semlock.name)
    return list(pool.map(same, pairs(answers)))
"""
    assert outcome(tmp_path, code) == WORKS
    name = (tmp_path / "name").read_text().removeprefix("/")
    assert name.startswith("mp-")
    assert not Path(f"/dev/shm/sem.{name}").exists()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        pytest.param(
            "def right(answers):\n    signal.alarm(5)\n    signal.signal(signal.SIGALRM, print)\n",
            "raised ValueError .*signal only works in main thread of the main interpreter. It is called in a thread, an"
            " async function too, .* subprocess.run.*timeout=5.*rollout.reward.mathVerify",
            id="an alarm",
        ),
        pytest.param(
            "async def right(answers):\n    signal.signal(signal.SIGALRM, print)\n",
            "signal only works in main thread of the main interpreter. It is called in a thread",
            id="an alarm in an async function",
        ),
        pytest.param(
            "def right(answers):\n    return asyncio.get_event_loop().run_until_complete(None)\n",
            "raised RuntimeError .*A plain function is called in a thread without an event loop: use asyncio.run",
            id="the loop of a thread that has none",
        ),
        pytest.param(
            "async def no():\n    pass\nasync def right(answers):\n    return asyncio.run(no())\n",
            "raised RuntimeError .*An async function runs on an event loop already: await what it calls",
            id="asyncio.run in an async function",
        ),
        pytest.param(
            "def right(answers):\n    with ProcessPoolExecutor(1) as pool:\n"
            "        return list(pool.map(lambda pair: 1.0, pairs(answers)))\n",
            "Another process gets functions by their names: define what it runs at the top level of a module",
            id="a lambda in a pool",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_does_not_work_is_named_with_its_cure(code: str, sentence: str, tmp_path: Path) -> None:
    found = outcome(tmp_path, code)
    assert re.search(sentence, found), found
