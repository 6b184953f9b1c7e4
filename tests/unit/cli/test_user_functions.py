"""A function that cannot be called as it will be is refused before anything starts, whatever field names it."""

from __future__ import annotations

import errno
import importlib
import os
from pathlib import Path
from typing import Any

import pytest

from rljob_api.manifest import job_of
from rljob_api.rule import WITHOUT_RULES
from rljob_cli.checks.user_calls import Awaited, UserCall
from rljob_cli.checks.user_functions import UserFunction, function_problem, functions_of
from rljob_workers import estimators
from rljob_workers.data import curriculum
from rljob_workers.rewards import custom
from rljob_workers.rollout import dynamic_sampling
from rljob_workers.trainers import objectives
from rljob_workers.training import sample_filter
from rljob_workers.user_functions import Signature
from tests.unit.api.manifests import changed

PLAY = UserCall(
    ("prompt", "engine", "params"),
    "async def rollout(prompt, engine, params): ...",
    Awaited.ALWAYS,
    keywords=frozenset(),
)


def problem_of(folder: Path, source: str, call: UserCall) -> str | None:
    (folder / "tools_of_test.py").write_text(source)
    found = function_problem(UserFunction("spec.x", "tools_of_test:own", "spec.path", str(folder), call))
    return None if found is None else found.removeprefix("spec.x: ").replace(str(folder), ".")


@pytest.mark.parametrize(
    ("source", "keywords", "expected"),
    [
        ("async def own(prompt, engine, params): ...", (), None),
        ("async def own(prompt, engine, params, /, *, factor): ...", ("factor",), None),
        ("async def own(*given, **named): ...", ("factor",), None),
        ("async def own(prompt, engine, params, factor=2): ...", ("factor",), None),
        ("@wrapped\ndef own(): ...", ("factor",), None),
        ("class Play: ...\nown = Play()", ("factor",), None),
        ("class Play:\n  async def __call__(self, a, b, c): ...\nown = Play()", (), None),
        (
            "class Play:\n  def __call__(self, a, b, c): ...\nown = Play()",
            (),
            "own is not async. Write it as `async def rollout(prompt, engine, params): ...`.",
        ),
        (
            "def own(prompt, engine, params): ...",
            (),
            "own is not async. Write it as `async def rollout(prompt, engine, params): ...`.",
        ),
        (
            "async def own(prompt, engine): ...",
            (),
            "own cannot be called with 3 arguments (prompt, engine, params). Write it as `async def rollout(prompt,"
            " engine, params): ...`.",
        ),
        (
            "async def own(prompt, engine, params):\n  yield 1",
            (),
            "own is a generator: a call of it gives no result. Write it as `async def rollout(prompt, engine, params):"
            " ...`.",
        ),
        (
            "async def own(prompt, engine, params, tool): ...",
            (),
            "own needs tool. Give it in rollout.function.arguments.",
        ),
        (
            "async def own(prompt, engine, params, *, tool): ...",
            (),
            "own needs tool. Give it in rollout.function.arguments.",
        ),
        (
            "async def own(prompt, engine, params): ...",
            ("tol",),
            "own has no argument tol, which rollout.function.arguments gives. Correct the name or remove it.",
        ),
        (
            "async def other(prompt, engine, params): ...",
            (),
            "./tools_of_test.py has no own. Define it there or correct the name.",
        ),
        ("own = other\nother = own", (), None),
        ("from functools import partial\nown = partial(other, 1)\nother = third\nthird = partial(own, 2)", (), None),
        ("own = 7", (), "own in ./tools_of_test.py is not a function. Define it as one or correct the name."),
    ],
)
def test_how_a_rollout_function_is_called(
    tmp_path: Path, source: str, keywords: tuple[str, ...], expected: str | None
) -> None:
    call = UserCall(PLAY.arguments, PLAY.example, PLAY.awaited, keywords=frozenset(keywords))
    assert problem_of(tmp_path, source, call) == expected


FUNCTION = {"function": "m:own"}
JOB: dict[str, Any] = {
    "spec.algorithm": {"advantage": "m:own", "loss": "m:own", "lossAggregation": "m:own", "sampleFilter": "m:own"},
    "spec.algorithm.correction": {"kind": "m:own"},
    "spec.rollout.function": FUNCTION,
    "spec.rollout.curriculum": FUNCTION,
    "spec.rollout.dynamicSampling": {"filter": "m:own"},
    "spec.rollout.reward": {
        "custom": FUNCTION,
        "sum": [{"name": "a", "custom": FUNCTION}, {"name": "b", "custom": {**FUNCTION, "perSample": True}}],
    },
}
"""A job that names a function wherever it can; no rule between fields holds for it."""
CALLS = {function.field: function.call for function in functions_of(job_of(changed(JOB), WITHOUT_RULES).spec)}
LETTERS = "abcdefgh"


def test_calls_are_those_of_the_workers() -> None:
    wanted: dict[str, Signature] = {
        "spec.rollout.reward.custom.function": custom.OF_GROUP,
        "spec.rollout.reward.sum[0].custom.function": custom.OF_GROUP,
        "spec.rollout.reward.sum[1].custom.function": custom.OF_SAMPLE,
        "spec.rollout.dynamicSampling.filter": dynamic_sampling._OWN,
        "spec.rollout.curriculum.function": curriculum._OWN,
        "spec.algorithm.advantage": estimators._OWN,
        "spec.algorithm.loss": objectives._OWN_LOSS,
        "spec.algorithm.lossAggregation": objectives._OWN_AGGREGATION,
        "spec.algorithm.correction.kind": objectives._OWN_CORRECTION,
        "spec.algorithm.sampleFilter": sample_filter._OWN,
    }
    assert CALLS.keys() == {*wanted, "spec.rollout.function.function"}
    for field, signature in wanted.items():
        call = CALLS[field]
        assert (len(call.arguments), ", ".join(call.arguments)) == (signature.num_arguments, signature.arguments)
        assert (call.example, call.or_keyword) == (signature.example, signature.or_keyword)


def example_of(call: UserCall) -> str:
    """The example of the sentence, as a module that can be parsed."""
    return (
        call.example.partition("(")[0].rpartition(" ")[0] + " own(" + ", ".join(LETTERS[: len(call.arguments)]) + "):"
    )


@pytest.mark.parametrize("field", CALLS)
def test_a_call_that_can_be_made_is_let_through(field: str, tmp_path: Path) -> None:
    call = CALLS[field]
    define, names = example_of(call), ", ".join(LETTERS[: len(call.arguments)])
    keyword = define.partition(" own")[0]
    for source in (
        f"{define} ...",
        f"{keyword} own(*given): ...",
        f"{keyword} own({names}, more=1, *, named=2): ...",
        f"from functools import partial\n{keyword} whole(first, {names}, *, by): ...\nown = partial(whole, 1, by=2)",
        f"import functools\n{keyword} whole({names}, *, by): ...\nown = functools.partial(whole, by=2)",
        f"{keyword} whole({names}): ...\nown = whole",
        f"class Own:\n  {keyword} __call__(self, {names}): ...\nown = Own()",
        f"if fast:\n  def own(): ...\nelse:\n  {define} ...",
        "from elsewhere import own",
        "own = made_by(1)",
        f"@decorated\n{keyword} own(): ...",
    ):
        assert problem_of(tmp_path, source, call) is None, source


@pytest.mark.parametrize("field", CALLS)
def test_a_call_that_cannot_be_made_is_refused(field: str, tmp_path: Path) -> None:
    call = CALLS[field]
    define = example_of(call)
    keyword, names = define.partition(" own")[0], ", ".join(LETTERS[: len(call.arguments)])
    count = "one argument" if len(call.arguments) == 1 else f"{len(call.arguments)} arguments"
    unbound = f"own cannot be called with {count} ({', '.join(call.arguments)}). Write it as `{call.example}`."
    for source in (
        f"{keyword} own(): ...",
        f"{keyword} whole({names}): ...\nfrom functools import partial\nown = partial(whole, 1)",
        f"class Own:\n  {keyword} __call__(self): ...\nown = Own()",
        f"{keyword} other(): ...\nown = other",
    ):
        assert problem_of(tmp_path, source, call) == unbound, source
    for source in (f"{keyword} own({names}, more): ...", f"{keyword} own({names}, *, by): ..."):
        assert problem_of(tmp_path, source, call) is not None, source
    assert problem_of(tmp_path, f"class own:\n  def __init__(self, {names}): ...", call) == (
        "own is a class, and a call of it makes an object. Name a function, or an object that has __call__."
    )
    if call.awaited is Awaited.NEVER:
        assert problem_of(tmp_path, f"async {define} ...", call) == (
            f"own is async, and is called without being waited for. Write it as `{call.example}`."
        )
    if call.awaited is Awaited.IF_ASYNC:
        assert problem_of(tmp_path, f"async {define} ...", call) is None
    expected = (
        None if call.may_yield else f"own is a generator: a call of it gives no result. Write it as `{call.example}`."
    )
    assert problem_of(tmp_path, f"{define}\n  yield 1", call) == expected
    assert problem_of(tmp_path, f"{define}\n  def inner(): yield 1\n  return inner", call) is None


def test_a_reward_of_names_is_called_by_them(tmp_path: Path) -> None:
    for field in ("spec.rollout.reward.custom.function", "spec.rollout.reward.sum[1].custom.function"):
        assert problem_of(tmp_path, "def own(prompts, completions, answer, **kwargs): ...", CALLS[field]) is None


def test_a_module_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "tools_of_test.py").mkdir()
    importlib.invalidate_caches()
    found = function_problem(UserFunction("spec.x", "tools_of_test:own", "spec.path", str(tmp_path), PLAY))
    assert found is not None
    assert found.startswith("spec.x: module tools_of_test is neither in ")


@pytest.mark.parametrize(
    ("name", "link", "target", "reason"),
    [
        pytest.param("own", "own.py", "own.py", errno.ELOOP, id="a module that is a loop"),
        pytest.param("own", "own.py", "gone.py", errno.ENOENT, id="a module that is no more"),
        pytest.param("own", "own", "own", errno.ELOOP, id="a package that is a loop"),
        pytest.param("own", "own/__init__.py", "__init__.py", errno.ELOOP, id="the file of a package"),
        pytest.param("own.deep", "own", "own", errno.ELOOP, id="a package above the module"),
        pytest.param("own.deep", "own/deep.py", "deep.py", errno.ELOOP, id="a module of a package"),
    ],
)
def test_a_link_that_leads_to_no_module_is_named(
    name: str, link: str, target: str, reason: int, tmp_path: Path
) -> None:
    (tmp_path / link).parent.mkdir(exist_ok=True)
    (tmp_path / link).symlink_to(target)
    found = function_problem(UserFunction("spec.x", f"{name}:own", "spec.path", str(tmp_path), PLAY))
    assert found == (
        f"spec.x: {tmp_path}/{link} is a link that leads to no file ({os.strerror(reason)}). Link it to one, or copy"
        " the file."
    )
