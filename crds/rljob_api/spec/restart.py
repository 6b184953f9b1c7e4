"""Restarts of a job (`spec.restartPolicy`): fields, rules, and the time-outs that follow from them.

Anyone may import it. `rljob_operator.core` decides what is restarted.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from rljob_api.base import ApiModel
from rljob_api.names import Role, Scope
from rljob_api.roles import TRAITS, field_name
from rljob_api.rule import Rule, RuledModel

BACKOFF: tuple[Rule, ...] = (
    Rule(
        field="maxSeconds",
        holds=lambda backoff: backoff.initial_seconds is None or backoff.max_seconds >= backoff.initial_seconds,
        sentence="{maxSeconds} is below initialSeconds {initialSeconds}. Give at least initialSeconds.",
        cel="!has(self.initialSeconds) || self.maxSeconds >= self.initialSeconds",
    ),
)


def _keeps_default(role: Role) -> Rule:
    """The row of a role whose scope is fixed."""
    traits, field = TRAITS[role], field_name(role)
    scope = traits.scope
    return Rule(
        field=field,
        holds=lambda table: table.row(role) in (None, scope),
        sentence=f"{{{field}}} is not possible: {traits.fixed_because}, so a failed {field} restarts the job. "
        f"Give {scope} or leave the row out.",
        cel=f"!has(self.{field}) || self.{field} == '{scope}'",
    )


RESTART_TABLE: tuple[Rule, ...] = tuple(_keeps_default(role) for role in Role if TRAITS[role].fixed_because)


RESTART_POLICY: tuple[Rule, ...] = (
    Rule(
        field="stallTimeoutSeconds",
        holds=lambda policy: policy.stall_timeout_seconds > policy.heartbeat_timeout_seconds,
        sentence="{stallTimeoutSeconds} is not above heartbeatTimeoutSeconds {heartbeatTimeoutSeconds}, so that a rank "
        "that hangs would be called a stalled job. Give more than heartbeatTimeoutSeconds.",
        cel="self.stallTimeoutSeconds > self.heartbeatTimeoutSeconds",
    ),
    Rule(
        field="collectiveTimeoutSeconds",
        holds=lambda policy: (
            policy.collective_timeout_seconds is None
            or policy.collective_timeout_seconds > policy.heartbeat_timeout_seconds
        ),
        sentence="{collectiveTimeoutSeconds} is not above heartbeatTimeoutSeconds {heartbeatTimeoutSeconds}, so that "
        "those who wait for a rank that hangs would give up before it is called silent. Give more than "
        "heartbeatTimeoutSeconds, or leave it out.",
        cel="!has(self.collectiveTimeoutSeconds) || self.collectiveTimeoutSeconds > self.heartbeatTimeoutSeconds",
    ),
    Rule(
        field="collectiveTimeoutSeconds",
        holds=lambda policy: (
            policy.collective_timeout_seconds is None
            or policy.collective_timeout_seconds < policy.stall_timeout_seconds
        ),
        sentence="{collectiveTimeoutSeconds} is not below stallTimeoutSeconds {stallTimeoutSeconds}, so that a rank "
        "that does not come would be called a stalled job. Give less than stallTimeoutSeconds, or leave it out.",
        cel="!has(self.collectiveTimeoutSeconds) || self.collectiveTimeoutSeconds < self.stallTimeoutSeconds",
    ),
    Rule(
        field="coordinatorAbsenceSeconds",
        holds=lambda policy: (
            policy.coordinator_absence_seconds is None
            or policy.coordinator_absence_seconds < policy.stall_timeout_seconds
        ),
        sentence="{coordinatorAbsenceSeconds} is not below stallTimeoutSeconds {stallTimeoutSeconds}, so that a rank "
        "that waits for its coordinator would be called a stalled job. Give less than stallTimeoutSeconds, or leave it "
        "out.",
        cel="!has(self.coordinatorAbsenceSeconds) || self.coordinatorAbsenceSeconds < self.stallTimeoutSeconds",
    ),
    Rule(
        field="coordinatorAbsenceSeconds",
        holds=lambda policy: (
            None in (policy.coordinator_absence_seconds, policy.collective_timeout_seconds)
            or policy.coordinator_absence_seconds < policy.collective_timeout_seconds
        ),
        sentence="{coordinatorAbsenceSeconds} is not below collectiveTimeoutSeconds {collectiveTimeoutSeconds}, so "
        "that a rank that waits for its coordinator would be called one that hangs. Give less than "
        "collectiveTimeoutSeconds, or leave it out.",
        cel="!has(self.coordinatorAbsenceSeconds) || !has(self.collectiveTimeoutSeconds) || "
        "self.coordinatorAbsenceSeconds < self.collectiveTimeoutSeconds",
    ),
)


FAILURE_RULE: tuple[Rule, ...] = (
    Rule(
        field="exitCodes",
        holds=lambda rule: bool(rule.exit_codes) or bool(rule.pod_reasons),
        sentence="neither exitCodes nor podReasons says which failures the rule {name} is for. Give at least one.",
        cel="self.exitCodes.size() + self.podReasons.size() > 0",
    ),
)


class BackoffSpec(RuledModel):
    """Delay before the n-th global restart in a row: initialSeconds * factor^(n-1), at most maxSeconds.

    n falls back to 1 once a checkpoint was recorded after the last restart, or the job was Ready for ten minutes.
    """

    rules = BACKOFF

    initial_seconds: float | None = Field(default=None, ge=0, le=86400)
    """Delay before the first; 0 means none at all. Null: none before the first two, then 5 s and growing, and none
    before a restart that is not counted."""
    factor: float = Field(default=2.0, ge=1, le=10)
    """Growth from one to the next."""
    max_seconds: float = Field(default=60.0, ge=0, le=86400)
    """Longest delay."""


class RestartTableSpec(RuledModel):
    """Overrides of single rows of the restart table; null keeps the default. Actor and critic take only Global."""

    rules = RESTART_TABLE

    actor: Scope | None = None
    """Default Global, and nothing else."""
    critic: Scope | None = None
    """Default Global, and nothing else."""
    rollout: Scope | None = None
    """Default Global."""
    actor_fwd: Scope | None = None
    """Default Global."""
    reference: Scope | None = None
    """Default InPlace."""
    advantages: Scope | None = None
    """Default InPlace."""

    def row(self, role: Role) -> Scope | None:
        """The override for `role`, or None."""
        return getattr(self, role.value)  # type: ignore[no-any-return]


class Mechanism(StrEnum):
    """How a restart is carried out."""

    PROCESS = "Process"
    RECREATE = "Recreate"


class RuleAction(StrEnum):
    """The consequence of a failure that a rule matches."""

    COUNT = "Count"
    IGNORE = "Ignore"
    FAIL_JOB = "FailJob"


class FailureRuleSpec(RuledModel):
    """A rule for failures; the first that matches applies. At least one of exitCodes and podReasons."""

    rules = FAILURE_RULE

    name: str = Field(min_length=1, max_length=63)
    """Named in events."""
    role: Role | None = None
    """Failures of this role only; null means of any."""
    exit_codes: list[Annotated[int, Field(ge=-64, le=255)]] = Field(default=[], max_length=64)
    """Exit codes of a rank or container; -N for signal N."""
    pod_reasons: list[Annotated[str, StringConstraints(min_length=1, max_length=128)]] = Field(
        default=[], max_length=32
    )
    """Why the platform ended a pod, e.g. Evicted, PreemptionByScheduler, NodeLost, OOMKilled."""
    action: RuleAction
    """Count: towards maxGlobalRestarts and threshold. Ignore: restarted, not counted. FailJob: the job fails."""


class RestartPolicySpec(RuledModel):
    """Decides what a failure restarts."""

    rules = RESTART_POLICY

    table: RestartTableSpec = RestartTableSpec()
    """A failure of a role restarts: Global, the whole job; InPlace, its pod alone."""
    threshold: int = Field(default=3, ge=1, le=1000)
    """The threshold-th failure of one role since the last global restart is global."""
    window_seconds: int | None = Field(default=None, ge=1, le=31_536_000)
    """Failures older than this are forgotten; null: never."""
    max_global_restarts: int = Field(default=10, ge=0, le=100000)
    """One more than this fails the job."""
    backoff: BackoffSpec = BackoffSpec()
    """Delay before a global restart."""
    heartbeat_timeout_seconds: int = Field(default=30, ge=1, le=86400)
    """A rank whose main loop has not beaten for this long (and has not reported itself busy) hangs."""
    stall_timeout_seconds: int = Field(default=600, ge=2, le=604800)
    """A job that comes no step forward for this long is Stalled and restarted: no step is trained, no token made on the
    way to one, no row put. A long answer that still grows is never given up; an engine that has requests and makes no
    token is, with its requests, midway between heartbeatTimeoutSeconds and this."""
    collective_timeout_seconds: int | None = Field(default=None, ge=1, le=604800)
    """Ranks of the actor, or of the critic, that have waited for this long for one of them break up their group, and
    name it. Null: midway between heartbeatTimeoutSeconds and stallTimeoutSeconds."""
    rendezvous_timeout_seconds: int = Field(default=120, ge=1, le=86400)
    """For the actor's ranks, and for the critic's, to find each other, from when all of their pods are there; then who
    is missing is named."""
    coordinator_absence_seconds: int | None = Field(default=None, ge=1, le=86400)
    """A rank that has not reached its coordinator for this long leaves, and starts again when it can be reached: that
    restarts the job and is not counted, if its launcher could not reach it either. Pods that run and are silent as a
    whole are replaced after as long. Null: half of collectiveTimeoutSeconds, but 60 where that would be less."""
    mechanism: Mechanism = Mechanism.PROCESS
    """Process: ranks are forked again in their pods; a pod that does not answer, or whose node is gone, is replaced.
    Recreate: every pod that is to be restarted is replaced."""
    failure_rules: list[FailureRuleSpec] = Field(default=[], max_length=64)
    """Single kinds of failure lead to these actions, before the table is asked. Without a rule, pods that were evicted,
    preempted, deleted or lost with their node are restarted and not counted."""


class RestartRequestSpec(ApiModel):
    """A restart that the user asks for. Carried out once for every new id; not counted."""

    id: str = Field(min_length=1, max_length=63)
    """Any text that was not used before, such as a date."""
    role: Role | None = None
    """Restarts this role in place (actor or critic: the whole job); null restarts the job."""
    reason: str = Field(default="", max_length=1024)
    """Told in events and conditions."""


LEAST_ABSENCE_SECONDS = 60.0
"""A restart of the coordinator takes a second or two, on another node some tens."""


LEAST_PARTS_SECONDS = 300.0
"""A disk that stalls may take minutes for a part of a checkpoint, however short the policy's times are."""


LEAST_LOADING_SECONDS = 300.0
"""For what a start does beside reading: imports of a reward, memory of a model, compilation."""


LEAST_BYTES_PER_SECOND = 20e6
"""A rank's share of a network disk that the ranks of a large job read or write at once."""


def collective_seconds(policy: RestartPolicySpec) -> float:
    """How long ranks wait for each other within one collective.

    Longer than silence takes to be noticed, so that a rank that hangs is named and not those who wait for it; shorter
    than a stall, which names no rank.
    """
    if policy.collective_timeout_seconds is not None:
        return float(policy.collective_timeout_seconds)
    return _between_silence_and_stall(policy)


def absence_seconds(policy: RestartPolicySpec) -> float:
    """How long a rank does without its coordinator before it leaves.

    Within what the others of its gang wait for it in a collective, where that leaves a minute: then it leaves by its
    own exit code, which is not counted, and is not called a hang.
    """
    if policy.coordinator_absence_seconds is not None:
        return float(policy.coordinator_absence_seconds)
    most = collective_seconds(policy)
    return max(min(LEAST_ABSENCE_SECONDS, most), most / 2)


def parts_seconds(policy: RestartPolicySpec) -> float:
    """How long a checkpoint whose leader has written its part waits for those of the others, beside `transfer_seconds`.

    Parts are dealt by size, so that the others' have about as many bytes as the leader's.
    """
    return max(LEAST_PARTS_SECONDS, collective_seconds(policy))


def transfer_seconds(num_bytes: int) -> float:
    """Seconds that reading or writing so many bytes may take on the slowest storage that a job is run on."""
    return num_bytes / LEAST_BYTES_PER_SECOND


def loading_seconds(num_bytes: int) -> float:
    """How long a rank may take to load what it reads so many bytes of, by its own announcement."""
    return LEAST_LOADING_SECONDS + transfer_seconds(num_bytes)


def engine_stall_seconds(policy: RestartPolicySpec) -> float:
    """How long an engine that has requests may make no token before they are given up, by name.

    Shorter than a stall, which restarts the whole job: the same requests at the same engine may do.
    """
    return _between_silence_and_stall(policy)


def _between_silence_and_stall(policy: RestartPolicySpec) -> float:
    return (policy.heartbeat_timeout_seconds + policy.stall_timeout_seconds) / 2
