"""A rollout function that cannot be called as it will be is refused before anything starts."""

import re
from pathlib import Path

import pytest

from rljob_cli.checks.user_functions import RolloutCall, UserFunction, function_problem


@pytest.mark.parametrize(
    ("source", "keywords", "sentence"),
    [
        ("async def play(prompt, engine, params): ...", (), None),
        ("async def play(prompt, engine, params, /, *, factor): ...", ("factor",), None),
        ("async def play(*given, **named): ...", ("factor",), None),
        ("async def play(prompt, engine, params, factor=2): ...", ("factor",), None),
        ("@wrapped\ndef play(): ...", ("factor",), None),
        ("class Play: ...\nplay = Play()", ("factor",), None),
        ("def play(prompt, engine, params): ...", (), "play is not async. Write it as `async def play.prompt"),
        ("async def play(prompt, engine): ...", (), "play does not take prompt, engine and params."),
        ("async def play(prompt, engine, params, tool): ...", (), "play needs tool. Give it in rollout.function.arg"),
        ("async def play(prompt, engine, params, *, tool): ...", (), "play needs tool."),
        ("async def play(prompt, engine, params): ...", ("tol",), "play has no argument tol, which rollout.function"),
        ("async def other(prompt, engine, params): ...", (), "has no play. Define it there or correct the name."),
        ("play = 7", (), "play in .* is not a function."),
    ],
)
def test_how_a_rollout_function_is_called(
    tmp_path: Path, source: str, keywords: tuple[str, ...], sentence: str | None
) -> None:
    (tmp_path / "tools_of_test.py").write_text(source)
    field = "spec.rollout.function"
    call = RolloutCall(frozenset(keywords))
    found = function_problem(
        UserFunction(f"{field}.function", "tools_of_test:play", f"{field}.path", str(tmp_path), call)
    )
    if sentence is None:
        assert found is None
    else:
        assert re.match(rf"spec\.rollout\.function\.function: .*{sentence}", found or ""), found
