"""A status in which every field is set, and how it is written, as the operator does."""

from rljob_api.names import Epoch, Role
from rljob_api.status import (
    AcceptedStatus,
    Condition,
    ConditionType,
    DemandMark,
    EvaluationStatus,
    Phase,
    PodSetStatus,
    PodStatus,
    ProcessStatus,
    QueueStatus,
    RestartStatus,
    RLJobStatus,
    RoleStatus,
    ScalingStatus,
    SetFigureStatus,
    StalenessStatus,
    TolerationStatus,
    TrainingStatus,
)
from tests.cluster.harness.kubectl import Kubectl

MARK = DemandMark(
    since=1763740000.0,
    at=1763740100.5,
    step=3,
    actor_seconds=80.0,
    starved_seconds=40.5,
    rollout_seconds=160.0,
    withheld_seconds=1.25,
)

FULL = RLJobStatus(
    phase=Phase.RUNNING,
    reason="RankExited",
    observed_generation=1,
    accepted=AcceptedStatus(generation=1, digest="0123456789ab"),
    conditions=[
        Condition(
            type=kind,
            status="False",
            reason="Testing",
            message="It's a test, with \u00fcml\u00e4uts.\nAnd a second line.",
            last_transition_time="2026-11-21T16:00:00Z",
            observed_generation=1,
        )
        for kind in ConditionType
    ],
    roles=[
        RoleStatus(
            name=role,
            replicas=2,
            ready=1,
            failures=1,
            failure_times=[1763740800.25],
            pods=[
                PodStatus(
                    name=f"{role}-{index}",
                    ready=bool(index),
                    generation=index,
                    incarnation="uid/1",
                    lost_incarnation="uid/0",
                    draining=True,
                    drain_ordered_at=1763740801.5,
                    ordered_at=1763740800.125,
                )
                for index in range(2)
            ],
        )
        for role in Role
    ],
    restart=RestartStatus(
        epoch=Epoch(3),
        decision_id="d",
        global_restarts=2,
        counted_towards_max=1,
        backoff_until=1763740900.0,
        scope="Global",
        reason="RankExited",
        message="actor-0.0 was killed by SIGKILL",
        decided_at=1763740800.0,
        opened=Epoch(3),
        opened_at=1763740800.75,
        consecutive=1,
        checkpoint=4,
        revision="0123456789ab",
        proven_revision="0123456789ab",
        releasing=True,
        handled_request="2026",
    ),
    training=TrainingStatus(
        step=5,
        total_steps=10,
        weight_version=6,
        checkpoint=4,
        checkpoint_folder="4-e3-0123456789ab",
        samples_per_second=7012.34,
        tokens_per_second=21000.0,
        staleness=StalenessStatus(current=1, max=1),
        queue_depth=32,
        rows_dropped=4,
        reward=0.875,
        last_report_time=1763740850.0,
    ),
    evaluation=EvaluationStatus(
        version=4,
        step=3,
        sets=[SetFigureStatus(name="held-out", metric="mean@2", value=0.625)],
        summary="held-out 0.62 @ 4",
    ),
    scaling=ScalingStatus(
        replicas=2,
        selector="rljob.dev/job=demo,rljob.dev/role=rollout",
        desired=2,
        reason="ActorStarved",
        message="the actor has waited for samples for 40 % of its time",
        last_decision=1763740700.5,
        judged_replicas=2,
        judged_from_step=3,
        up_since=MARK,
        down_since=MARK,
    ),
    queue=QueueStatus(
        name="research",
        cluster_queue="gpus",
        pod_sets=[
            PodSetStatus(
                name="actor",
                node_selector={"example.org/gpu": "h100"},
                tolerations=[TolerationStatus(key="example.org/gpu", operator="Exists", effect="NoSchedule")],
                labels={"example.org/team": "research"},
                annotations={"example.org/why": "admitted"},
            )
        ],
    ),
    infrastructure=[ProcessStatus(name="coordinator", restarts=1, restarts_in_vain=1)],
    started_at=1763740000.0,
    active_seconds=12.5,
    waiting_since=1763740900.5,
    ended_at=1763741000.0,
)


def write_status(kubectl: Kubectl, status: RLJobStatus) -> None:
    """Into the status of the job `demo`."""
    kubectl.merge("rlj", "demo", {"status": status.model_dump(mode="json")}, subresource="status")
