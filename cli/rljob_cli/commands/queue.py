"""`rljob queue`: shows the queue of a running job, proves that it is in order, drains it.

The job's coordinator does the work and is reached through `jobs.coordinator`; `ui.queue` makes text of its answers.
Draining polls the coordinator until nothing moves and prints each change of what it waits for.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, Literal, TypeVar

import click

from rljob_api.names import EXIT_BAD_MANIFEST, EXIT_FAILED
from rljob_api.wire.queue import (
    MAX_PEEK_ROWS,
    MAX_PEEK_VALUES,
    DrainRequest,
    DrainState,
    QueueCheck,
    QueuePeek,
    QueueStats,
    RowState,
    Tickets,
)
from rljob_cli.jobs.coordinator import CoordinatorApi, NoAnswer, QueueProblem, coordinator_of
from rljob_cli.ui.queue import peek_text, stats_text
from rljob_cli.ui.reporter import Reporter

POLL_SECONDS = 0.5


def give_again(coordinator: CoordinatorApi, reporter: Reporter) -> None:
    """Ends a drain; nothing if there is none."""
    _order(coordinator, Tickets.GIVE)
    reporter.report("result", "Tickets are given.", tickets=Tickets.GIVE.value)


def drain_and_wait(
    coordinator: CoordinatorApi,
    reporter: Reporter,
    seconds: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Withholds tickets and waits until nothing moves any more; raises QueueProblem at the deadline."""
    deadline = clock() + seconds
    state = _order(coordinator, Tickets.WITHHOLD)
    reporter.report("drain", "No ticket is given any more.", tickets=Tickets.WITHHOLD.value)
    reported: Sequence[str] = []
    while state.waits:
        if state.waits != reported:
            reporter.report("progress", f"waiting: {_listed(state.waits)}", waits=state.waits)
            reported = state.waits
        if clock() >= deadline:
            raise QueueProblem(
                f"The queue was not drained within {seconds:g} s: {_listed(state.waits)}. Tickets stay withheld; wait"
                " again with the same command, or give them with --off."
            )
        sleep(POLL_SECONDS)
        state = _poll(coordinator, deadline, clock, sleep)
    for sentence in state.stays:
        reporter.report("stays", sentence, stays=sentence)
    reporter.report("result", "The queue is drained. `rljob queue drain --off` gives tickets again.", drained=True)


def _order(coordinator: CoordinatorApi, tickets: Tickets) -> DrainState:
    return coordinator.order(DrainState, "/v1/queue/drain", DrainRequest(tickets=tickets))


def _poll(
    coordinator: CoordinatorApi, deadline: float, clock: Callable[[], float], sleep: Callable[[float], None]
) -> DrainState:
    """The state now; a coordinator that is being restarted is asked again."""
    while True:
        try:
            state = coordinator.ask(DrainState, "/v1/queue/drain")
        except NoAnswer:
            if coordinator.has_ended():
                raise QueueProblem("The job ended before its queue was drained.") from None
            if clock() >= deadline:
                raise
            sleep(POLL_SECONDS)
            continue
        if state.draining_since is None:
            raise QueueProblem("Somebody took the drain back before the queue was drained: tickets are given.")
        return state


def _listed(waits: Sequence[str]) -> str:
    return "; ".join(waits)


Output = Literal["text", "json"]


F = TypeVar("F", bound=Callable[..., Any])


_JOB = """\b
JOB:
  the folder of a run on this machine (its --out, by default rljob-out/NAME), or the name of an RLJob on a cluster, by
  your kubeconfig. With -n it is always a name."""


_GROUP_EPILOG = f"""{_JOB}

\b
Examples:
  rljob queue stats rljob-out/quickstart                  rows, tickets, leases, bytes
  rljob queue peek rljob-out/quickstart actor_train       rows that are ready to be trained, claimed by nobody
  rljob queue check rljob-out/quickstart                  is every row where it should be?
  rljob queue drain quickstart -n team-a                  give no more tickets, wait until nothing moves

\b
Exit codes: 0 done, 1 not (check: something is broken), 2 wrong use, 64 no such run, task, field or partition."""


_STATS_EPILOG = f"""\b
What it shows:
  where the job is, tickets and what withholds them, rows by partition, task and state (unready: fields are missing;
  ready; claimed; done), who has leases for how long, and what each storage unit holds. docs/queue.md explains it.

{_JOB}

\b
Examples:
  rljob queue stats rljob-out/quickstart
  rljob queue stats quickstart -n team-a --output json | jq '.tasks[] | {{task, rowsReady}}'"""


_PEEK_EPILOG = f"""\b
WHAT: a task (rows that it has in --state, oldest partition first), a partition (train_3), or both; nothing is all rows.
The rows stay where they are: nobody is kept from claiming them.

{_JOB}

\b
Examples:
  rljob queue peek rljob-out/quickstart actor_train
  rljob queue peek rljob-out/quickstart actor_log_probs --state claimed
  rljob queue peek rljob-out/quickstart train_3 --first 64 --limit 4 --field tokens --values 16"""


_CHECK_EPILOG = f"""\b
What is proven:
  every row is in one state for each task, and lists, leases, batches and counts agree with it; every ticket is that of
  its group; no prompt is drawn twice; capacity is kept; every byte that is named is on its storage unit. A job at work
  may be asked: each part is proven at one moment.

{_JOB}

\b
Exit codes: 0 everything holds, 1 something is broken."""


_DRAIN_EPILOG = f"""\b
What happens:
  No replica gets a ticket any more. Tickets in work are finished or come back, rows run through all tasks, and what is
  whole is trained and published. The command says what is still waited for and ends when nothing moves any more. Rows
  of a rollout that is not complete stay in the queue. The drain lasts until --off, over restarts of anything; the job
  is not called stalled meanwhile. Ctrl-C ends the waiting, not the drain.

{_JOB}

\b
For programs, --output json prints one object a line; its "kind" is drain, progress (waits), stays or result.

\b
Exit codes: 0 drained (with --off: tickets are given), 1 not within --timeout; tickets stay withheld then.

\b
Examples:
  rljob queue drain rljob-out/quickstart --timeout 120
  rljob queue drain rljob-out/quickstart --off"""


_namespace = click.option("-n", "--namespace", help="Namespace of JOB, which is then a name on a cluster.")


_output = click.option("--output", type=click.Choice(["text", "json"]), default="text", help="For people or programs.")


def _options(command: F) -> F:
    return click.argument("job")(_namespace(_output(command)))


@click.group("queue", epilog=_GROUP_EPILOG)
def queue() -> None:
    """Look at the queue of a running job, prove that it is in order, or drain it."""


@queue.command(epilog=_STATS_EPILOG, short_help="Count what is in it, and say who has what.")
@_options
def stats(*, job: str, namespace: str | None, output: Output) -> None:
    """Count what is in the queue of JOB, by partition, task and state, and say who has it."""
    with _coordinator(job, namespace) as coordinator:
        found = coordinator.ask(QueueStats, "/v1/queue")
    click.echo(found.model_dump_json() if output == "json" else stats_text(found))


@queue.command(epilog=_PEEK_EPILOG, short_help="Look at rows without claiming them.")
@_options
@click.argument("what", nargs=-1)
@click.option("--state", type=click.Choice([state.value for state in RowState]), help="The task's.  [default: ready]")
@click.option("--field", help="Show the first values of this field.")
@click.option("--values", type=click.IntRange(0, MAX_PEEK_VALUES), default=8, show_default=True, help="How many.")
@click.option("--first", type=click.IntRange(0), default=0, show_default=True, help="Row to begin with.")
@click.option("--limit", type=click.IntRange(1, MAX_PEEK_ROWS), default=10, show_default=True, help="Most rows.")
def peek(
    *,
    job: str,
    what: Sequence[str],
    namespace: str | None,
    output: Output,
    state: str | None,
    field: str | None,
    **numbers: int,
) -> None:
    """Look at rows in the queue of JOB without claiming them."""
    with _exit_code():
        query: dict[str, str | int] = {**_what(what), **numbers}
    query |= {name: text for name, text in (("state", state), ("field", field)) if text is not None}
    with _coordinator(job, namespace) as coordinator:
        found = coordinator.ask(QueuePeek, "/v1/queue/rows", query)
    click.echo(found.model_dump_json() if output == "json" else peek_text(found))


@queue.command(epilog=_CHECK_EPILOG, short_help="Prove that it is in order.")
@_options
def check(*, job: str, namespace: str | None, output: Output) -> None:
    """Prove that the queue of JOB is in order; what is broken is named."""
    with _coordinator(job, namespace) as coordinator:
        found = coordinator.ask(QueueCheck, "/v1/queue/check")
    if output == "json":
        facts = {"holds": not found.broken, "partitions": found.partitions, "broken": found.broken}
        click.echo(json.dumps(facts, ensure_ascii=False))
    else:
        for sentence in found.broken:
            click.echo(f"BROKEN: {sentence}")
        if not found.broken:
            click.echo(f"Holds: {found.partitions} partitions, every row where it should be.")
    raise click.exceptions.Exit(EXIT_FAILED if found.broken else 0)


@queue.command(epilog=_DRAIN_EPILOG, short_help="Give no more tickets, and wait until nothing moves.")
@_options
@click.option("--off", is_flag=True, help="Give tickets again, and wait for nothing.")
@click.option("--timeout", type=click.IntRange(1), default=600, show_default=True, help="Seconds to wait.")
def drain(*, job: str, namespace: str | None, output: Output, off: bool, timeout: int) -> None:
    """Give no more tickets to JOB, and wait until everything that is issued is consumed or back."""
    reporter = Reporter(output)
    with _coordinator(job, namespace) as coordinator:
        if off:
            give_again(coordinator, reporter)
        else:
            drain_and_wait(coordinator, reporter, timeout)


@contextmanager
def _coordinator(job: str, namespace: str | None) -> Iterator[CoordinatorApi]:
    """The job's coordinator; a problem within ends the process with its sentence and exit code."""
    with _exit_code(), closing(coordinator_of(job, namespace)) as coordinator:
        yield coordinator


@contextmanager
def _exit_code() -> Iterator[None]:
    try:
        yield
    except QueueProblem as problem:
        click.echo(str(problem), err=True)
        raise click.exceptions.Exit(problem.exit_code) from None


def _what(given: Sequence[str]) -> dict[str, str | int]:
    """Partition and task among the arguments."""
    partitions = [name for name in given if re.fullmatch(r"train_\d+", name)]
    tasks = [name for name in given if name not in partitions]
    if len(partitions) > 1 or len(tasks) > 1:
        raise QueueProblem(
            f"WHAT: {' '.join(given)} is more than one task and one partition. Name at most one of each.",
            EXIT_BAD_MANIFEST,
        )
    found: dict[str, str | int] = {}
    if partitions:
        found["partition"] = int(partitions[0].removeprefix("train_"))
    if tasks:
        found["task"] = tasks[0]
    return found
