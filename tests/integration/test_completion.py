"""Completion as docs/running.md has it, in a real bash: commands, options and fields of the manifest."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_BASH = shutil.which("bash") or "bash"
# What bash does when Tab is pressed: it calls the function that `complete` has named, with the words so far.
_TAB = """
eval "$(_RLJOB_COMPLETE=bash_source rljob)"
registered=$(complete -p rljob)
[[ $registered =~ -F\\ ([^ ]+) ]]
function=${BASH_REMATCH[1]}
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
"$function" "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        pytest.param(["va"], ["validate"], id="a command"),
        pytest.param(["queue", "st"], ["stats"], id="a command of a group"),
        pytest.param(["run", "--se"], ["--set"], id="an option"),
        pytest.param(
            ["run", "job.yaml", "--set", "training.optimizer.learn"], ["training.optimizer.learningRate="], id="a field"
        ),
    ],
)
def test_bash_completes(typed: list[str], expected: list[str], tmp_path: Path) -> None:
    program = tmp_path / "rljob"  # as an installation has it
    program.write_text(f"#!{sys.executable}\nfrom rljob_cli.main import main\nmain()\n")
    program.chmod(0o755)
    ended = subprocess.run(
        [_BASH, "--norc", "-c", _TAB, "bash", "rljob", *typed],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.stderr == ""
    assert ended.stdout.split("\n")[:-1] == expected
