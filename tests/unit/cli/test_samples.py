"""`rljob samples`: which samples are chosen, and what a person sees of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner, Result

from rljob_api.generations import FILE, OLDER_FILE
from rljob_cli.commands.samples import harmless
from rljob_cli.jobs.sample_log import RetainedSample, read_generations, standing_generations
from rljob_cli.main import cli


def line(rollout: int, index: int = 0, epoch: int = 1, **changes: Any) -> RetainedSample:
    return {
        "rollout": rollout,
        "epoch": epoch,
        "group": 0,
        "index": index,
        "prompt": f"{rollout}+{index}=",
        "response": f"{rollout + index}<|eos|>",
        "promptTokens": 4,
        "responseTokens": 2,
        "finishReason": "stop",
        "reward": 1.0,
        "valid": True,
        "advantage": 0.5,
        "versions": [{"lineage": 1, "version": rollout, "start": 0, "end": 2}],
        **changes,
    }


@pytest.mark.parametrize(
    ("draws", "shown"),
    [
        ({}, "made by v2"),
        ({"draws": 1, "lastDrawRefused": False}, "made by v2"),
        ({"draws": 3, "lastDrawRefused": False}, "made by v2 | draw 3 of its group"),
        ({"draws": 8, "lastDrawRefused": True}, "made by v2 | all 8 draws refused"),
    ],
)
def test_a_page_states_which_draw_a_sample_is_of(tmp_path: Path, draws: dict[str, Any], shown: str) -> None:
    write(tmp_path / FILE, [line(2, **draws)])
    assert run(tmp_path).output.splitlines()[0].endswith(f"| {shown}")


LINES = [
    line(0, 0, reward=0.0, advantage=-0.5),
    line(0, 1, finishReason="length"),
    line(1, 0, valid=False, reward=0.0, advantage=0.0),
    line(1, 1, reward=0.25),
    line(2, 0),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / OLDER_FILE, LINES[:2])
    write(tmp_path / FILE, LINES[2:])
    return tmp_path


def write(path: Path, lines: list[RetainedSample]) -> None:
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["samples", *map(str, arguments)])


def chosen(*arguments: str | Path) -> list[tuple[int, int]]:
    result = run(*arguments, "--output", "json")
    assert result.exit_code == 0, result.output
    return [(one["rollout"], one["index"]) for one in json.loads(result.output)["samples"]]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param([], [(2, 0)], id="the newest rollout"),
        pytest.param(["--rollout", "0"], [(0, 0), (0, 1)], id="one rollout"),
        pytest.param(["--rollout", "1..2"], [(1, 0), (1, 1), (2, 0)], id="a range, its end included"),
        pytest.param(["--rollout", "all", "--limit", "3"], [(0, 0), (0, 1), (1, 0)], id="no more than wanted"),
        pytest.param(["--rollout", "all", "--min-reward", "1"], [(0, 1), (2, 0)], id="good ones"),
        pytest.param(["--rollout", "all", "--max-reward", "0"], [(0, 0)], id="bad ones, not those without a score"),
        pytest.param(["--rollout", "all", "--finish", "length"], [(0, 1)], id="cut off"),
        pytest.param(["--rollout", "all", "--unscored"], [(1, 0)], id="where the reward has failed"),
        pytest.param(["--rollout", "7"], [], id="nothing matches"),
    ],
)
def test_what_is_chosen(folder: Path, options: list[str], expected: list[tuple[int, int]]) -> None:
    assert chosen(folder, *options) == expected


def test_a_page_shows_the_text_and_what_became_of_it(folder: Path) -> None:
    assert run(folder, "--rollout", "1").output == (
        "== rollout 1 group 0 sample 0 | not scored | stopped | 4 + 2 tokens | made by v1\n"
        "prompt    1+0=\n"
        "response  1<|eos|>\n"
        "\n"
        "== rollout 1 group 0 sample 1 | reward 0.25 | advantage +0.5 | stopped | 4 + 2 tokens | made by v1\n"
        "prompt    1+1=\n"
        "response  2<|eos|>\n"
        "\n"
        "2 match. 5 samples are kept, of rollouts 0 to 2.\n"
    )


def test_a_table_has_a_line_for_each(folder: Path) -> None:
    output = run(folder, "--rollout", "all", "--output", "table").output.splitlines()
    assert output[0].split() == [
        *("rollout", "group", "sample", "reward", "advantage", "finish", "tokens", "made", "by", "prompt", "response")
    ]
    assert output[3].split() == ["1", "0", "0", "-", "-", "stop", "2", "v1", "1+0=", "1<|eos|>"]


def test_label_and_parts_of_the_reward_are_shown(tmp_path: Path) -> None:
    parts = {"digit": 0.5, "right": 1.0, "judge/score": None}
    write(tmp_path / FILE, [line(2, label="4\x1b", rewardParts=parts), line(2, 1)])
    assert run(tmp_path).output.splitlines()[1:5] == [
        "prompt    2+0=",
        "response  2<|eos|>",
        "label     4\\x1b",
        "rewards   digit 0.5, right 1, judge/score -",
    ]
    head, first, second = run(tmp_path, "--output", "table").output.splitlines()[:3]
    assert head.split()[-4:] == ["parts", "label", "prompt", "response"]
    assert "digit 0.5, right 1, judge/score -" in first
    assert "\\x1b" in first
    assert second.split()[-2:] == ["2+1=", "3<|eos|>"]
    first_sample, _ = json.loads(run(tmp_path, "--output", "json").output)["samples"]
    assert (first_sample["label"], first_sample["rewardParts"]) == ("4\x1b", parts)


def test_model_and_tools_are_shown_by_turns(tmp_path: Path) -> None:
    turns = [
        {"by": "model", "start": 0, "end": 2, "text": "2*3?"},
        {"by": "tool", "start": 2, "end": 3, "text": "6"},
        {"by": "model", "start": 3, "end": 5, "text": "6<|eos|>"},
    ]
    spans = [{"lineage": 1, "version": 2, "start": s, "end": e} for s, e in ((0, 2), (3, 5))]
    write(tmp_path / FILE, [line(2, response="2*3?66<|eos|>", responseTokens=5, versions=spans, turns=turns)])
    assert run(tmp_path).output.splitlines()[:5] == [
        "== rollout 2 group 0 sample 0 | reward 1 | advantage +0.5 | stopped | 4 + 5 (1 of tools) tokens | made by v2",
        "prompt    2+0=",
        "model     2*3?",
        "tool      6",
        "model     6<|eos|>",
    ]
    (sample,) = json.loads(run(tmp_path, "--output", "json").output)["samples"]
    assert sample["turns"] == turns


def test_long_texts_lose_their_middle_unless_all_is_wanted(tmp_path: Path) -> None:
    spans = [{"lineage": 1, "version": v, "start": s, "end": e} for v, s, e in ((3, 0, 10), (4, 10, 4000))]
    write(tmp_path / FILE, [line(4, response="a" * 2000 + "\n" + "b" * 2000, versions=spans)])
    short, full = run(tmp_path).output, run(tmp_path, "--full").output
    assert "[2801 characters left out, see --full]" in short
    assert "made by v3 (10), v4 (3990)" in short
    assert "a" * 2000 + "\n          " + "b" * 2000 in full


def test_what_a_model_writes_does_not_command_the_terminal(tmp_path: Path) -> None:
    write(tmp_path / FILE, [line(0, response="\x1b[2J[bold]\x07é\u202e\n.")])
    for form in ("pages", "table"):
        output = run(tmp_path, "--output", form).output
        assert "\\x1b[2J[bold]\\x07é\\u202e" in output
        assert "\x1b" not in output
    assert harmless("tab\tline\n") == "tab\tline\n"


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085", "\x0b", "\r"])
def test_only_a_line_feed_ends_a_line(tmp_path: Path, separator: str) -> None:
    """A model writes what it likes, and the writer escapes no more of it than JSON wants."""
    whole = orjson.dumps(line(0, response=f"one{separator}two"), option=orjson.OPT_APPEND_NEWLINE)
    half = orjson.dumps(line(1, response="é"))
    (tmp_path / FILE).write_bytes(whole + half[: half.index("é".encode()) + 1])
    assert [one["response"] for one in read_generations(tmp_path)] == [f"one{separator}two"]


def test_a_half_line_and_what_was_trained_again_are_left_out(tmp_path: Path) -> None:
    write(tmp_path / FILE, [line(0), line(1), line(2), line(1, epoch=3, reward=0.5)])
    with (tmp_path / FILE).open("a") as file:
        file.write('{"rollout": 2, "ep')
    assert chosen(tmp_path, "--rollout", "all") == [(0, 0), (1, 0)]
    assert chosen(tmp_path, "--rollout", "1", "--max-reward", "0.5") == [(1, 0)]


def test_an_epoch_voids_the_rollouts_from_its_first_one_on() -> None:
    lines = [line(0), line(1), line(2), line(1, epoch=2), line(0, epoch=4)]
    assert [(one["rollout"], one["epoch"]) for one in standing_generations(lines)] == [(0, 4)]


@pytest.mark.parametrize(
    ("files", "arguments", "sentence"),
    [
        pytest.param({}, ["nowhere"], "nowhere is not a folder. Give the folder of a run", id="no folder"),
        pytest.param(
            {}, ["."], f"has no {FILE}: nothing is trained yet, telemetry.generationsPerRollout is 0", id="no file"
        ),
        pytest.param({FILE: ""}, ["."], "has no sample yet: the first rollout is not trained", id="no sample yet"),
        pytest.param(
            {FILE: json.dumps(line(0)) + "\n"},
            [".", "--rollout", "first"],
            "--rollout: 'first' is none. Give `last`, `all`, a number, or a range such as 10..20.",
            id="no rollout",
        ),
    ],
)
def test_what_cannot_be_shown_states_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], arguments: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    result = run(*arguments)
    assert (result.exit_code, sentence in result.stderr) == (64, True), result.output
