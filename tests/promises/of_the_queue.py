"""Promises of the queue: how far rollouts run ahead, what is trained once, what a late call may change."""

from tests.promises.patch import Promise

_LUA = "rljob_workers/transfer_queue/control/lua"
_QUEUE = "tests/integration/transfer_queue"

QUEUE = (
    Promise(
        "staleness-of-tickets",
        "No ticket is given for a rollout that is more than maxStaleness ahead of the replica's weights.",
        f"{_LUA}/tickets.lua",
        old="- version > SHAPE.staleness then",
        new="- version > SHAPE.staleness + 1 then",
        tests=(
            f"{_QUEUE}/test_tickets.py::"
            "test_tickets_come_lowest_rollout_first_up_to_the_staleness_of_the_replicas_own_weight",
        ),
    ),
    Promise(
        "staleness-of-rows",
        "A group with a token that is older than maxStaleness allows is refused and generated again.",
        f"{_LUA}/puts.lua",
        old="r - counts <= SHAPE.staleness}",
        new="r - counts <= SHAPE.staleness + 1}",
        tests=(f"{_QUEUE}/test_tickets.py::test_a_group_of_weights_that_do_not_count_is_generated_again",),
    ),
    Promise(
        "batch-claimed-once",
        "A training claim that is made again, by any rank of the gang, has the rows of the first one.",
        f"{_LUA}/claims.lua",
        old="if kept then return kept, nil end",
        new="",
        tests=(
            f"{_QUEUE}/test_claims.py::"
            "test_ranks_share_a_training_batch_evenly_and_the_same_question_gets_the_same_rows",
        ),
    ),
    Promise(
        "batch-trained-once",
        "A batch that is committed twice counts once towards its rollout.",
        f"{_LUA}/claims.lua",
        old="fresh = fresh + claimed",
        new="fresh = fresh + run[2]",
        tests=(f"{_QUEUE}/test_claims.py::test_a_batch_that_is_committed_twice_counts_once",),
    ),
    Promise(
        "late-calls-fenced",
        "A change of the queue by an earlier epoch, or by an incarnation that is over, is refused as fenced.",
        f"{_LUA}/state.lua",
        old="    require_live(all[2], all[3])\n",
        new="",
        tests=(
            f"{_QUEUE}/test_epochs.py::test_everybody_of_the_old_epoch_is_fenced",
            f"{_QUEUE}/test_tickets.py::test_an_ended_incarnation_is_fenced_and_its_tickets_come_back",
        ),
    ),
    Promise(
        "lost-replies",
        "A call that is repeated after a lost reply gets the first answer and changes nothing more.",
        f"{_LUA}/state.lua",
        old="if number == call then return",
        new="if false then return",
        tests=(
            f"{_QUEUE}/test_tickets.py::test_a_claim_whose_reply_was_lost_is_answered_again_and_issues_nothing_twice",
        ),
    ),
    Promise(
        "dead-results-refused",
        "Results of weights that a restore has left behind are refused.",
        f"{_LUA}/claims.lua",
        old="if args[2] ~= '0' and not is_alive(",
        new="if false and not is_alive(",
        tests=(f"{_QUEUE}/test_claims.py::test_a_dead_weights_result_is_refused",),
    ),
    Promise(
        "tickets-come-back",
        "What a rank had in work when it ended is generated again, in its place and by its prompt.",
        f"{_LUA}/lives.lua",
        old="  return_all(incarnation)\n",
        new="",
        tests=(f"{_QUEUE}/test_tickets.py::test_an_ended_incarnation_is_fenced_and_its_tickets_come_back",),
    ),
    Promise(
        "publish-when-trained",
        "A version is published only once every row before it is trained.",
        f"{_LUA}/lives.lua",
        old="local why = training.missing_to_publish(published)",
        new="local why = nil",
        tests=(f"{_QUEUE}/test_claims.py::test_nothing_is_published_before_every_row_is_trained",),
    ),
)
