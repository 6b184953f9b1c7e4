"""How long pods stay on a node that is lost, unless their template speaks of it."""

from typing import Any

import pytest

from rljob_operator.build.scheduling import LOST_NODE_SECONDS, bounded

NOT_READY, UNREACHABLE = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"


@pytest.mark.parametrize(
    ("given", "added"),
    [
        pytest.param([], [NOT_READY, UNREACHABLE], id="nothing is said"),
        pytest.param([{"key": "gpu", "operator": "Exists"}], [NOT_READY, UNREACHABLE], id="another taint"),
        pytest.param(
            [{"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 600}],
            [NOT_READY],
            id="of one of them another time",
        ),
        pytest.param([{"key": NOT_READY, "operator": "Exists"}], [UNREACHABLE], id="no effect is every effect"),
        pytest.param(
            [{"key": NOT_READY, "operator": "Exists", "effect": "NoSchedule"}],
            [NOT_READY, UNREACHABLE],
            id="of another effect",
        ),
        pytest.param([{"operator": "Exists"}], [], id="every taint is tolerated for ever"),
        pytest.param(
            [{"operator": "Exists", "effect": "NoSchedule"}], [NOT_READY, UNREACHABLE], id="every key, another effect"
        ),
    ],
)
def test_what_a_template_states_of_lost_nodes_stands(given: list[dict[str, Any]], added: list[str]) -> None:
    tolerations = bounded(given)

    assert tolerations[: len(given)] == given
    assert [each["key"] for each in tolerations[len(given) :]] == added
    assert {each["tolerationSeconds"] for each in tolerations[len(given) :]} <= {LOST_NODE_SECONDS}
    assert bounded(tolerations) == tolerations
