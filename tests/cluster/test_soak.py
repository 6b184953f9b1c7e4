"""The soak: jobs come, fail, scale, pause and are deleted in three namespaces while the operator is killed each minute.

RLJOB_SOAK_SECONDS says for how long (an hour), RLJOB_SOAK_SEED repeats a schedule. Three quarters are the storm; then
the courses that have begun come to their ends. In the last quarter one operator lives, and cheap jobs come and go: only
there memory could grow with their number.
"""

import os
import random
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rljob_api.cluster import checkpoint_claim_name
from tests.cluster.harness.definition import install_definition
from tests.cluster.harness.kubectl import Kubectl
from tests.cluster.harness.machine import Cluster
from tests.cluster.harness.operator import OperatorProcess
from tests.cluster.harness.rljob import ClusterJob
from tests.cluster.soak import courses
from tests.cluster.soak.operator_memory import Reading, growth, is_flat, resident_kib

SECONDS = float(os.environ.get("RLJOB_SOAK_SECONDS", "3600"))
SEED = int(os.environ.get("RLJOB_SOAK_SEED", str(uuid.uuid4().int % 10**6)))
STORM_SHARE = 0.75
NUM_NAMESPACES = 3
MOST_CHEAP, MOST_COMPUTING = 5, 2
"""Lives at a time."""
BETWEEN_KILLS_SECONDS = (40.0, 80.0)
COURSE_SECONDS = 1200.0
"""One wait of a course; it takes minutes on a busy machine. A bound alone."""
PER_READING = 12
"""Jobs that come and go in the calm between two readings of memory."""
Kind = Callable[[ClusterJob, random.Random], courses.Course]
OF_EACH_NAMESPACE = {"kube-root-ca.crt"}

pytestmark = [pytest.mark.long, pytest.mark.timeout(SECONDS + 3 * COURSE_SECONDS)]


@dataclass
class Led:
    """A course that is led."""

    kind: str
    job: ClusterJob
    course: courses.Course
    awaited: courses.Until | None = None
    since: float = 0.0


@dataclass
class Soak:
    """Its namespaces, its operator and its courses."""

    kubectls: Sequence[Kubectl]
    operator: OperatorProcess
    rng: random.Random
    led: list[Led] = field(default_factory=list)
    over: Counter[str] = field(default_factory=Counter)
    """Kind of course -> how many are over."""
    retained: set[tuple[str, str]] = field(default_factory=set)
    """(namespace, claim) of jobs that are gone and whose checkpoints may stay: a job that never began has none."""
    trained: set[tuple[str, str]] = field(default_factory=set)
    """Those of jobs that have trained."""
    kills: int = 0
    num_made: int = 0

    def begin(self, kinds: Sequence[Kind], most: int) -> None:
        """Begins a course of one of these kinds, unless as many as there may be are led."""
        if sum(each.kind in {kind.__name__ for kind in kinds} for each in self.led) >= most:
            return
        kind = self.rng.choice(kinds)
        self.num_made += 1
        job = courses.make(self.rng.choice(self.kubectls), f"j{self.num_made}", self.rng)
        self.led.append(Led(kind.__name__, job, _whole(kind, job, self.rng)))

    def look(self) -> None:
        """Takes each course as far as it goes now."""
        for each in list(self.led):
            self._go_on(each)

    def _go_on(self, each: Led) -> None:
        while each.awaited is None or each.awaited.holds():
            try:
                each.awaited, each.since = next(each.course), time.monotonic()
            except StopIteration:
                self._is_over(each)
                return
        late = time.monotonic() - each.since > COURSE_SECONDS
        assert not late, f"{each.kind} {each.job.name} waits for {each.awaited.what}.\n{_summary(each.job)}"

    def _is_over(self, each: Led) -> None:
        self.led.remove(each)
        self.over[each.kind] += 1
        if not courses.keeps_its_claim(each.job):
            return
        claim = (each.job.kubectl.namespace, checkpoint_claim_name(each.job.name))
        self.retained.add(claim)
        if each.kind in {kind.__name__ for kind in courses.COMPUTING}:
            self.trained.add(claim)

    def kill(self) -> None:
        """The operator dies of SIGKILL, and a new one begins at once."""
        assert self.operator.exit_code is None, f"the operator ended by itself:\n{self.operator.tail()}"
        self.operator.kill()
        self.operator.start()
        self.kills += 1

    def reading(self, jobs: int) -> Reading:
        """The operator's memory now."""
        return Reading(jobs, len(self.led), resident_kib(self.operator.pid))


def _whole(kind: Kind, job: ClusterJob, rng: random.Random) -> courses.Course:
    yield from kind(job, rng)
    yield from courses.is_deleted(job)


def _summary(job: ClusterJob) -> str:
    with suppress(AssertionError):
        return job.summary()
    return "there is no such job any more"


@pytest.fixture
def soak(cluster: Cluster, tmp_path: Path) -> Iterator[Soak]:
    if cluster.node is None:
        pytest.skip("the cluster of KUBECONFIG is not this machine's: its processes cannot be killed")
    install_definition(cluster.kubeconfig)
    text = f"soak-{uuid.uuid4().hex[:6]}"
    kubectls = [Kubectl(cluster.kubeconfig, f"{text}-{number}") for number in range(NUM_NAMESPACES)]
    for kubectl in kubectls:
        kubectl("create", "namespace", kubectl.namespace)
    names = [kubectl.namespace for kubectl in kubectls]
    with OperatorProcess(cluster, names[0], tmp_path, namespaces=names) as operator:
        yield Soak(kubectls, operator, random.Random(SEED))
    for kubectl in kubectls:
        kubectl.delete("namespace", kubectl.namespace)


def report(text: str) -> None:
    """On the terminal too, where pytest is called with -s, as `make test-soak` does."""
    sys.stdout.write(f"soak {time.strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()


def storm(soak: Soak, seconds: float) -> list[Reading]:
    """Lives and deaths; the operator's memory at each of its deaths."""
    began = time.monotonic()
    at_death: list[Reading] = []
    dies_at = began + soak.rng.uniform(*BETWEEN_KILLS_SECONDS)
    while time.monotonic() < began + seconds:
        soak.begin(courses.CHEAP, MOST_CHEAP)
        soak.begin(courses.COMPUTING, MOST_COMPUTING)
        soak.look()
        if time.monotonic() >= dies_at:
            at_death.append(soak.reading(soak.over.total()))
            soak.kill()
            dies_at = time.monotonic() + soak.rng.uniform(*BETWEEN_KILLS_SECONDS)
            report(f"kill {soak.kills}: {at_death[-1]}; over: {dict(soak.over)}")
        time.sleep(0.5)
    return at_death


def ends(soak: Soak) -> None:
    """Every course that has begun comes to its end."""
    while soak.led:
        soak.look()
        time.sleep(0.5)


def calm(soak: Soak, seconds: float) -> list[Reading]:
    """One incarnation, through which cheap jobs go; its memory whenever none is there."""
    soak.kill()
    began, before = time.monotonic(), soak.over.total()
    readings: list[Reading] = []
    while time.monotonic() < began + seconds or len(readings) < 6:
        for _ in range(PER_READING):
            soak.begin(courses.CHEAP, PER_READING)
        ends(soak)
        readings.append(soak.reading(soak.over.total() - before))
        report(f"calm: {readings[-1]}")
    return readings


def test_an_hour_of_jobs_under_a_dying_operator_leaves_nothing_and_loses_nothing(soak: Soak) -> None:
    report(f"seed {SEED}, {SECONDS:.0f} s")
    at_death = storm(soak, STORM_SHARE * SECONDS)
    ends(soak)
    report(f"after the storm: {soak.kills} kills, {soak.num_made} jobs, {dict(soak.over)}")
    assert soak.over.total() == soak.num_made
    readings = calm(soak, (1 - STORM_SHARE) * SECONDS)
    left = {
        (kubectl.namespace, each["metadata"]["name"])
        for kubectl in soak.kubectls
        for each in courses.left_of(kubectl)
        if each["metadata"]["name"] not in OF_EACH_NAMESPACE
    }
    jobs, kib = growth(readings)
    report(
        f"seed {SEED}: {soak.num_made} jobs, {soak.kills} kills; in the calm {kib:.0f} KiB more after {jobs} more jobs"
    )
    assert left <= soak.retained, f"seed {SEED}: orphans"
    assert soak.trained <= left, f"seed {SEED}: checkpoints of jobs that trained, and were to be kept"
    assert is_flat(readings), f"seed {SEED}: {readings}"
    if len(at_death) >= 3:  # an incarnation that finds more is larger: what earlier jobs have left
        assert is_flat(at_death), f"seed {SEED}: {at_death}"
