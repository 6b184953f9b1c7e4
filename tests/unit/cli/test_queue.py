"""`rljob queue` without a job: what it prints of what it is told, what it refuses, and how it waits for a drain."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rljob_api.base import ApiModel
from rljob_api.names import EXIT_BAD_MANIFEST, EXIT_FAILED, Lineage, WeightVersion
from rljob_api.wire.identity import Endpoints
from rljob_api.wire.queue import (
    DrainState,
    QueueCheck,
    QueuePeek,
    QueueRow,
    RowState,
    RowValues,
    TicketHolder,
    UnitStats,
    WeightSpan,
)
from rljob_cli.main import cli
from rljob_cli.queue_access import Coordinator, NoAnswer, QueueProblem
from rljob_cli.queue_drain import drain, give_again
from rljob_cli.queue_tables import peek_text, stats_text
from tests.unit.transfer_queue.test_draining import FORWARD, TRAIN, lease, make_stats, partition, rows

COMMANDS = ["stats", "peek", "check", "drain"]


def rljob(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["queue", *arguments])


# --- what is printed


def make_unit(**figures: int) -> UnitStats:
    return UnitStats(unit=0, generation=2, answers=True).model_copy(update=figures)


def test_stats_are_lines_for_the_job_and_tables_for_rows_leases_and_units() -> None:
    stats = make_stats(
        partition(3, rows(FORWARD, ready=2, claimed=2), rows(TRAIN, unready=4), put=2, groups_issued=2),
        leases=(lease(FORWARD, "actor_fwd-0.0"),),
        tickets_in_work=2,
        holders=[TicketHolder(holder="rollout-1.0", tickets=2)],
        units=[
            make_unit(used_bytes=3 << 20, limit_bytes=2 << 30, high_water_bytes=17 << 26, keys=9),
            UnitStats(unit=1, generation=None, answers=False),
            UnitStats(unit=2, generation=1, answers=None),
        ],
        garbage_chunks=4,
    )
    assert stats_text(stats).splitlines() == [
        "test: epoch 1, lineage 1, seq 7; published version 3, recorded 2",
        "tickets: 2 in work (rollout-1.0 2), 0 returned; 4 of 8 groups issued",
        "withheld: Draining (somebody drains the queue)",
        "draining since 1970-01-01T00:00:01.000000Z; `rljob queue drain --off` gives tickets again",
        "oldest lease: actor_fwd-0.0, 2 rows of train_3, 1.0 s",
        "garbage: 4 chunks, 0 partitions",
        "",
        "partition  groups           task             unready  ready  claimed  done  batches",
        "train_3    2 put, 2 issued  actor_log_probs        0      2        2     0        0",
        "                            actor_train            4      0        0     0        0",
        "",
        "lease of       task             partition  rows    age  ends in",
        "actor_fwd-0.0  actor_log_probs  train_3       2  1.0 s   29.0 s",
        "",
        "unit  generation             used  high water    limit  keys",
        "0              2          3.0 MiB     1.1 GiB  2.0 GiB     9",
        "1              -  does not answer",
        "2              1    not asked yet",
    ]


def test_an_empty_queue_is_shown_without_leases() -> None:
    quiet = make_stats(withheld=None, draining_since=None, recorded=None)
    assert stats_text(quiet).splitlines()[:3] == [
        "test: epoch 1, lineage 1, seq 7; published version 3, recorded none",
        "tickets: 0 in work, 0 returned; 4 of 8 groups issued",
        "garbage: 0 chunks, 0 partitions",
    ]
    assert "lease" not in stats_text(quiet)


def make_row(**changes: object) -> QueueRow:
    weight = WeightSpan(lineage=Lineage(1), version=WeightVersion(2))
    row = QueueRow(
        partition="train_3",
        row=5,
        group=2,
        group_state="put",
        lengths={"tokens": 7, "rewards": 1},
        states={FORWARD: RowState.DONE, TRAIN: RowState.READY},
        oldest=weight,
        newest=weight,
    )
    return row.model_copy(update=changes)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        pytest.param(
            make_row(),
            [
                "train_3 row 5 (group 2, put): actor_log_probs done, actor_train ready",
                "  has tokens[7], rewards[1]; made by v2@1",
            ],
            id="fields with their lengths, states by task, the weight",
        ),
        pytest.param(
            make_row(newest=WeightSpan(lineage=Lineage(1), version=WeightVersion(3))),
            [
                "train_3 row 5 (group 2, put): actor_log_probs done, actor_train ready",
                "  has tokens[7], rewards[1]; made by v2@1 to v3@1",
            ],
            id="tokens of several weights",
        ),
        pytest.param(
            make_row(field=RowValues(length=7, shape=[], dtype="int32", values=[1, 2])),
            [
                "train_3 row 5 (group 2, put): actor_log_probs done, actor_train ready",
                "  has tokens[7], rewards[1]; made by v2@1",
                "  int32: [1, 2, ...]",
            ],
            id="the first values of a field",
        ),
        pytest.param(
            make_row(field=RowValues(length=1, shape=[2], dtype="bfloat16", values=[0.5, None])),
            [
                "train_3 row 5 (group 2, put): actor_log_probs done, actor_train ready",
                "  has tokens[7], rewards[1]; made by v2@1",
                "  bfloat16[2]: [0.5, nan or inf]",
            ],
            id="all values of a short row",
        ),
        pytest.param(
            make_row(field=RowValues(length=7, shape=[], dtype="int32", values=None)),
            [
                "train_3 row 5 (group 2, put): actor_log_probs done, actor_train ready",
                "  has tokens[7], rewards[1]; made by v2@1",
                "  int32: its bytes are gone",
            ],
            id="bytes that are gone",
        ),
        pytest.param(
            make_row(group_state="issued", lengths={}, oldest=None, newest=None, states={TRAIN: RowState.UNREADY}),
            ["train_3 row 5 (group 2, issued): actor_train unready"],
            id="a row that is being generated",
        ),
    ],
)
def test_a_row_is_shown(row: QueueRow, expected: list[str]) -> None:
    assert peek_text(QueuePeek(rows=[row], more=False)).splitlines() == expected


def test_rows_that_are_not_shown_are_told() -> None:
    assert peek_text(QueuePeek(rows=[make_row()], more=True)).endswith("... and more: see --first and --limit.")
    assert peek_text(QueuePeek(rows=[], more=False)) == "There is no such row."


# --- what is refused


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_that_is_none_is_refused(command: str, tmp_path: Path) -> None:
    done = rljob(command, str(tmp_path / "none"))
    assert (done.exit_code, done.stdout) == (EXIT_BAD_MANIFEST, "")
    assert done.stderr.startswith(f"{tmp_path}/none is not a folder. Give the folder of a run ")


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    done = rljob("stats", str(tmp_path))
    assert done.exit_code == EXIT_BAD_MANIFEST
    assert done.stderr == f"{tmp_path} is not the folder of a run: it has no job.json. Give the --out of a run.\n"


def make_folder(folder: Path, endpoints: str | None = None) -> str:
    (folder / "job.json").write_text("{}")
    if endpoints is not None:
        (folder / "endpoints.json").write_text(endpoints)
    return str(folder)


def test_a_run_that_is_over_is_named(tmp_path: Path) -> None:
    done = rljob("check", make_folder(tmp_path))
    assert done.exit_code == EXIT_BAD_MANIFEST
    assert done.stderr == (
        f"Nothing runs in {tmp_path}: a run has its endpoints.json there from its start to its end. Start it with rljob"
        " run.\n"
    )


def test_endpoints_that_are_damaged_are_named(tmp_path: Path) -> None:
    done = rljob("check", make_folder(tmp_path, "{}"))
    assert done.exit_code == EXIT_BAD_MANIFEST
    assert "endpoints.json cannot be read (ValidationError)" in done.stderr


def test_a_coordinator_that_is_gone_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    endpoints = Endpoints(
        job="test",
        coordinator=f"http://127.0.0.1:{port}",
        token="t",
        control_redis="unix://:p@/none",
        storage_units=[],
        run_dir=str(tmp_path),
        weights_dir=str(tmp_path),
    )
    done = rljob("stats", make_folder(tmp_path, endpoints.model_dump_json()))
    assert (done.exit_code, done.stdout) == (EXIT_FAILED, "")
    assert done.stderr.startswith(f"The coordinator of the run in {tmp_path} does not answer (")
    assert done.stderr.endswith("See whether `rljob run` still runs there.\n")


@pytest.mark.parametrize("words", [["actor_train", "ref_log_probs"], ["train_1", "train_2"]])
def test_more_than_one_task_or_partition_is_refused(words: list[str], tmp_path: Path) -> None:
    done = rljob("peek", str(tmp_path), *words)
    assert done.exit_code == EXIT_BAD_MANIFEST
    assert (
        done.stderr == f"WHAT: {' '.join(words)} is more than one task and one partition. Name at most one of each.\n"
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_a_name_without_a_cluster_is_explained(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    done = rljob(command, "demo")
    assert (done.exit_code, done.stdout) == (EXIT_FAILED, "")
    assert done.stderr.startswith("demo is no folder here, so it is taken for a name. There is no cluster to ask: ")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_teaches_with_examples(command: str) -> None:
    done = rljob(command, "--help")
    assert done.exit_code == 0
    assert "Examples:" in done.output or command == "check"
    assert "the folder of a run on this machine" in done.output


# --- answers and the drain


class Scripted(Coordinator):
    """Gives these answers, one after the other."""

    def __init__(self, *answers: ApiModel | tuple[int, bytes] | NoAnswer, ended: bool = False) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, str]] = []
        self.ended = ended

    def has_ended(self) -> bool:
        return self.ended

    def close(self) -> None:
        """Nothing is open."""

    def _send(self, method: str, path: str, query: Mapping[str, str], body: ApiModel | None) -> tuple[int, bytes]:
        self.asked.append((method, path))
        answer = self.answers.pop(0)
        if isinstance(answer, NoAnswer):
            raise answer
        return answer if isinstance(answer, tuple) else (200, answer.model_dump_json().encode())


@pytest.mark.parametrize(
    ("answer", "exit_code", "sentence"),
    [
        ((400, b'{"reason":"BadRequest","message":"task: no."}'), EXIT_BAD_MANIFEST, "task: no."),
        ((404, b'{"reason":"NotFound","message":"train_9: no."}'), EXIT_BAD_MANIFEST, "train_9: no."),
        ((503, b'{"reason":"NotOpen","message":"Ask again."}'), EXIT_FAILED, "Ask again."),
        ((500, b"Internal Server Error"), EXIT_FAILED, "The coordinator refuses (500): Internal Server Error"),
        ((200, b'{"rows":[]}'), EXIT_FAILED, "The coordinator's answer to /v1/queue/rows is not understood (more: "),
    ],
)
def test_a_refusal_is_its_sentence(answer: tuple[int, bytes], exit_code: int, sentence: str) -> None:
    with pytest.raises(QueueProblem) as raised:
        Scripted(answer).ask(QueuePeek, "/v1/queue/rows")
    assert raised.value.exit_code == exit_code
    assert str(raised.value).startswith(sentence)


def test_a_broken_queue_ends_the_check_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = QueueCheck(partitions=2, broken=["train_3: a chunk is gone"])
    monkeypatch.setattr("rljob_cli.queue_command.coordinator_of", lambda *_: Scripted(broken))
    done = rljob("check", "demo")
    assert (done.exit_code, done.stdout) == (EXIT_FAILED, "BROKEN: train_3: a chunk is gone\n")
    done = rljob("check", "demo", "--output", "json")
    assert (done.exit_code, json.loads(done.stdout)) == (
        EXIT_FAILED,
        {"holds": False, "partitions": 2, "broken": ["train_3: a chunk is gone"]},
    )


class Told:
    """What a drain says; its waits cost no time."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.sentences: list[str] = []
        self.now = 0.0

    def say(self, kind: str, sentence: str, facts: dict[str, object]) -> None:
        self.kinds.append(kind)
        self.sentences.append(sentence)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def drain(self, coordinator: Coordinator, seconds: float = 10) -> None:
        drain(coordinator, self.say, seconds, clock=lambda: self.now, sleep=self.sleep)


def state(*waits: str, stays: tuple[str, ...] = (), since: float | None = 1.0) -> DrainState:
    return DrainState(draining_since=since, waits=list(waits), stays=list(stays))


def test_a_drain_says_what_it_waits_for_whenever_that_changes() -> None:
    told = Told()
    told.drain(Scripted(state("a"), state("a"), state("b"), state(stays=("train_4 stays",))))
    assert told.kinds == ["drain", "progress", "progress", "stays", "result"]
    assert told.sentences[1:4] == ["waiting: a", "waiting: b", "train_4 stays"]


def test_a_drain_that_takes_too_long_names_what_it_waits_for() -> None:
    told = Told()
    with pytest.raises(
        QueueProblem, match=r"was not drained within 1 s: 3 tickets are in work\. Tickets stay withheld"
    ):
        told.drain(Scripted(*[state("3 tickets are in work")] * 9), seconds=1)


def test_a_coordinator_that_is_restarted_is_asked_again() -> None:
    told = Told()
    told.drain(Scripted(state("a"), NoAnswer("away"), NoAnswer("away"), state()))
    assert told.kinds[-1] == "result"


def test_a_coordinator_that_stays_away_is_named_at_the_deadline() -> None:
    with pytest.raises(NoAnswer, match="away"):
        Told().drain(Scripted(state("a"), *[NoAnswer("away")] * 9), seconds=2)


def test_a_job_that_ends_meanwhile_is_told() -> None:
    with pytest.raises(QueueProblem, match=r"The job ended before its queue was drained\."):
        Told().drain(Scripted(state("a"), NoAnswer("away"), ended=True))


def test_a_drain_that_somebody_takes_back_is_told() -> None:
    with pytest.raises(QueueProblem, match="Somebody took the drain back before the queue was drained"):
        Told().drain(Scripted(state("a"), state("a", since=None)))


def test_giving_tickets_again_waits_for_nothing() -> None:
    told, coordinator = Told(), Scripted(state(since=None))
    give_again(coordinator, told.say)
    assert (told.kinds, coordinator.asked) == (["result"], [("PUT", "/v1/queue/drain")])
