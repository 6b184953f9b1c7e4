"""The courses that jobs of the soak lead: applied, changed, struck, ended and deleted, while others lead theirs.

A course is a generator: it acts on the cluster and yields what it waits for. The soak looks whether that holds yet, so
that all courses share one thread. An AssertionError of a course is a finding. Called by the soak alone.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rljob_api.cluster import LABEL_JOB, checkpoint_claim_name
from rljob_operator.kube.kinds import OWNED, PODS, REPLICA_SETS
from tests.cluster.harness.kubectl import Kubectl, KubectlFailed, Object
from tests.cluster.harness.processes import Kind, within
from tests.cluster.harness.rljob import ClusterJob, leaves_nothing, make_small_job, slowed

NOWHERE: Object = {"spec": {"nodeSelector": {"example.org/none": "none"}}}
MOST_EVENTS = 80
"""Of the operator about one job, with their repetitions. A job that says the same thing in each turn has hundreds."""


@dataclass(frozen=True)
class Until:
    """What a course waits for."""

    what: str
    holds: Callable[[], Any]
    """Raises where it will never hold."""


Course = Iterator[Until]


def waits(job: ClusterJob, rng: random.Random) -> Course:
    """Its pods find no node; it is scaled, edited, suspended and resumed at random."""
    nowhere = {"template": NOWHERE}
    job.manifest["spec"]["roles"] |= {"actor": nowhere, "rollout": nowhere}
    job.manifest["spec"]["infrastructure"] = nowhere
    changes: list[Callable[[], object]] = [
        lambda: job.kubectl("scale", f"rlj/{job.name}", f"--replicas={rng.randint(1, 3)}"),
        lambda: job.change({"suspend": True}),
        lambda: job.change({"suspend": False}),
        lambda: job.change({"training": {"optimizer": {"learningRate": rng.uniform(1e-4, 1e-3)}}}),
        lambda: job.restart_request(),
    ]
    job.apply()
    for change in rng.choices(changes, k=rng.randint(1, 4)):
        change()
        if rng.random() < 0.5:  # else the next change meets an operator that has not come to this one
            generation = job.object()["metadata"]["generation"]
            yield Until("its change to be seen", _seen(job, generation))


def trains(job: ClusterJob, _: random.Random) -> Course:
    """Runs to its end."""
    job.apply()
    yield from _succeeds(job)


def is_struck(job: ClusterJob, rng: random.Random) -> Course:
    """One of its ranks is killed while it trains."""
    job.apply()
    yield Until("two steps", lambda: _step(job) >= 1)
    pods = [pod for pod in job.pods() if pod["status"].get("phase") == "Running"]
    with suppress(AssertionError):  # the container has ended meanwhile, with the job
        ranks = [each for each in within(rng.choice(pods), "worker") if each.kind is Kind.RANK] if pods else []
        for rank in ranks:
            with suppress(ProcessLookupError):
                rank.kill()
    yield from _succeeds(job)


def is_paused(job: ClusterJob, rng: random.Random) -> Course:
    """Suspended at any moment of its beginning or its training, and resumed."""
    job.apply()
    step = rng.choice([-1, 0, 2])
    yield Until(f"step {step}", lambda: job.status() and _step(job) >= step)
    if not job.is_true("Succeeded"):
        job.change({"suspend": True})
        yield Until("its pods to go", lambda: job.is_true("Succeeded") or not job.pods())
        job.change({"suspend": False})
    yield from _succeeds(job)


def is_scaled(job: ClusterJob, _: random.Random) -> Course:
    """A second rollout comes, and goes, while it trains."""
    job.apply()
    yield Until("a step", lambda: _step(job) >= 0)
    for replicas in (2, 1):
        job.kubectl("scale", f"rlj/{job.name}", f"--replicas={replicas}")
        yield Until("a further step", _goes_on(job, job.step()))
    yield from _succeeds(job)


def has_no_image(job: ClusterJob, _: random.Random) -> Course:
    """Its actor's image is nowhere; the deadline of its start ends it."""
    job.manifest["spec"]["roles"] |= {
        "actor": {"template": {"spec": {"containers": [{"name": "worker", "image": "localhost/no-such-image:1"}]}}},
        "rollout": {"template": NOWHERE},
    }
    job.manifest["spec"]["infrastructure"] = {"template": NOWHERE}
    job.manifest["spec"]["startupDeadlineSeconds"] = 15
    job.apply()
    yield Until("its failure", lambda: job.is_true("Failed"))
    reason = job.condition("Failed")["reason"]
    assert reason == "StartupDeadlineExceeded", job.summary()


def has_a_failing_reward(job: ClusterJob, _: random.Random) -> Course:
    """Its reward raises for each answer."""
    job.manifest = slowed(job.manifest, "raising")
    job.manifest["spec"]["rollout"]["reward"]["onFailure"] = {"retries": 0}
    job.apply()
    yield Until("its failure", lambda: job.is_true("Failed"))
    assert not job.is_true("Succeeded"), job.summary()


def is_refused(job: ClusterJob, _: random.Random) -> Course:
    """The operator refuses its template; the user mends it, and it goes on as one that waits."""
    bad = {"spec": {**NOWHERE["spec"], "containers": [{"name": "worker", "command": ["sleep"]}]}}
    nowhere = {"template": NOWHERE}
    job.manifest["spec"]["roles"] |= {"actor": {"template": bad}, "rollout": nowhere}
    job.manifest["spec"]["infrastructure"] = nowhere
    job.apply()
    yield Until("its refusal", lambda: job.condition("Accepted").get("status") == "False")
    job.change({"roles": {"actor": {"template": {"spec": {"containers": None}}}}})
    yield Until("its acceptance", lambda: job.is_true("Accepted"))


CHEAP = (waits, waits, waits, has_no_image, is_refused)
"""Lives without a process that computes."""
COMPUTING = (trains, is_struck, is_paused, is_scaled, has_a_failing_reward)


def make(kubectl: Kubectl, name: str, rng: random.Random) -> ClusterJob:
    """A job to lead a course. Half of all keep their checkpoints beyond it."""
    manifest = slowed(make_small_job(name, rollout={"numRollouts": 8}, restartPolicy={"heartbeatTimeoutSeconds": 60}))
    return ClusterJob(kubectl, leaves_nothing(manifest) if rng.random() < 0.5 else manifest)


def keeps_its_claim(job: ClusterJob) -> bool:
    """Whether its checkpoints outlive it."""
    return bool(job.manifest["spec"]["checkpoint"]["volume"].get("onDelete") != "Delete")


def is_deleted(job: ClusterJob) -> Course:
    """How every course ends: nothing is left of it but a claim that is retained, and it said not too much."""
    reported = sum(int(event.get("series", {}).get("count", 1)) for event in job.events())
    assert reported <= MOST_EVENTS, f"{reported} Events of {job.name}, more than {MOST_EVENTS}: {job.summary()}"
    job.kubectl.delete("rljob", job.name)
    retained = {checkpoint_claim_name(job.name)} if keeps_its_claim(job) else set()

    def is_gone() -> bool:
        if job.kubectl.get("rljob", job.name) is not None:
            return False
        return {each["metadata"]["name"] for each in left_of(job.kubectl, f"{LABEL_JOB}={job.name}")} <= retained

    yield Until("nothing of it to be left", is_gone)


def left_of(kubectl: Kubectl, selector: str = "") -> list[Object]:
    """Objects of a namespace of every kind that a job is made of."""
    kinds = [resource.plural for resource in (*OWNED, PODS, REPLICA_SETS)]
    return [found for kind in kinds for found in _all(kubectl, kind, selector)]


def _all(kubectl: Kubectl, kind: str, selector: str) -> list[Object]:
    try:
        return kubectl.all(kind, selector)
    except KubectlFailed as error:
        if "has no kind" not in str(error):
            raise
        return []  # a kind of others' definitions, which this cluster lacks


def _seen(job: ClusterJob, generation: int) -> Callable[[], bool]:
    return lambda: job.status().get("observedGeneration", 0) >= generation


def _goes_on(job: ClusterJob, step: int) -> Callable[[], bool]:
    return lambda: job.is_true("Succeeded") or _step(job) > step


def _step(job: ClusterJob) -> int:
    """The last step; a job that ends before its time is a finding."""
    assert not job.is_true("Failed"), job.summary()
    return job.step()


def _succeeds(job: ClusterJob) -> Course:
    """Its end, at which the sample log proves that every sample was trained exactly once."""

    def has_succeeded() -> bool:
        assert not job.is_true("Failed"), job.summary()
        return job.is_true("Succeeded")

    yield Until("its success", has_succeeded)
    problems = job.audit().problems
    assert problems == [], f"{job.name}: {problems[:10]}\n{job.summary()}"
