"""Promises of supervisor and coordinator: scopes of restarts, drains, ends, the spec in force, ownership, the token."""

from tests.promises.patch import Promise

SUPERVISOR = (
    Promise(
        "token",
        "No request without the job's token reaches the coordinator, but for probes and scrapes.",
        "rljob_workers.dcs.coordinator.router:TokenGuard._is_given",
        old='== _HEADER), b"")',
        new="== _HEADER), self._token)",
        tests=("tests/unit/dcs/test_token_guard.py::test_a_request_without_the_token_reaches_nothing",),
    ),
    Promise(
        "restart-table",
        "A failure restarts what the row of its role says, the user's before the default.",
        "rljob_operator.core.restart:row",
        old="policy.table.row(role) or traits.scope",
        new="traits.scope",
        tests=("tests/unit/core/test_restart.py::test_the_table",),
    ),
    Promise(
        "restart-threshold",
        "A role's failure number `threshold` since the last global restart restarts the job.",
        "rljob_operator.core.restart:_why_global",
        old="count >= policy.threshold",
        new="count > policy.threshold",
        tests=("tests/unit/core/test_restart.py::test_the_table",),
    ),
    Promise(
        "restart-budget",
        "A restart that does not count is carried out also where maxGlobalRestarts is used up.",
        "rljob_operator.core.ends:limited",
        old="not verdict.counts or ",
        new="",
        tests=(
            "tests/unit/core/test_restart.py::"
            "test_a_damaged_checkpoint_restarts_the_job_uncounted_and_explains_the_ranks_that_left_for_it",
        ),
    ),
    Promise(
        "drain-saves",
        "An interrupted or suspended job stops only after what trains has saved.",
        "rljob_operator.core.drain:_drained",
        old="return None if saving or ",
        new="return None if ",
        tests=(
            "tests/unit/core/test_ends.py::test_an_interrupted_job_lets_what_trains_save_first_and_restarts_nothing",
        ),
    ),
    Promise(
        "success-is-recorded",
        "A job succeeds with the record of its last version, and not before that is evaluated.",
        "rljob_operator.core.ends:_finished",
        old="return None if coordinator.is_evaluating_last else Succeed()",
        new="return Succeed()",
        tests=("tests/unit/core/test_ends.py::test_a_last_version_that_is_being_evaluated_is_no_success_yet",),
    ),
    Promise(
        "gang-begins-together",
        "A pod of a gang that begins again takes all others of its gang along.",
        "rljob_operator.core.membership:with_one_generation",
        old="highest[gang] = max(highest.get(gang, 0), pod.generation)",
        new="highest[gang] = min(highest.get(gang, pod.generation), pod.generation)",
        tests=("tests/unit/core/test_gangs.py::test_a_pod_that_begins_again_takes_its_peers_along",),
    ),
    Promise(
        "accepted-spec-in-force",
        "While a newer spec is refused, the job is supervised by the one that was accepted last.",
        "rljob_operator.cluster.reconcile:Reconciler._turn_of",
        old="if before is None or await",
        new="if before is not None or await",
        tests=(
            "tests/unit/test_reconcile.py::test_a_job_is_supervised_by_its_accepted_spec_while_a_newer_one_is_refused",
        ),
    ),
    Promise(
        "accepted-spec-is-the-operators",
        "A spec that somebody else put in the place of the accepted one is not gone by.",
        "rljob_operator.kube.accepted_spec:AcceptedSpec.last",
        old="if status.accepted.digest == _digest(text) or ",
        new="if text or ",
        tests=("tests/unit/kube/test_last_accepted.py::test_what_the_status_does_not_vouch_for_is_not_gone_by",),
    ),
    Promise(
        "persist-then-act",
        "Nothing of a decision is carried out before its status is persisted.",
        "rljob_operator.cluster.reconcile:Reconciler._go_on",
        old="""\
        early = await memory.status.write(turn.raw, turn.status, decision.status)
        memory.restart_clock.persisted(decision.events, seen_at)
        opened: list[Event] = []
        try:
            outcome = await self._apply(turn, decision, claimed)
""",
        new="""\
        opened: list[Event] = []
        try:
            outcome = await self._apply(turn, decision, claimed)
            early = await memory.status.write(turn.raw, turn.status, decision.status)
            memory.restart_clock.persisted(decision.events, seen_at)
""",
        tests=("tests/unit/test_reconcile.py::test_nothing_with_pods_is_made_before_the_decision_is_persisted",),
    ),
    Promise(
        "foreign-objects",
        "An object of a name that the job needs is not touched where it is not the job's own.",
        "rljob_operator.kube.ownership:holder",
        old="return _keeper(view, uid, run)",
        new="return ObjectHolder.JOB",
        tests=("tests/unit/kube/test_ownership.py::test_holder",),
    ),
    Promise(
        "events-once",
        "An event with a key is emitted once per key.",
        "rljob_operator.kube.events:_Series.is_new",
        old="return False",
        new="return True",
        tests=(
            "tests/unit/kube/test_events.py::test_what_the_same_operator_is_given_again_with_its_key_is_no_repetition",
        ),
    ),
)
