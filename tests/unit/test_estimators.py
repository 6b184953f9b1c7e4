"""From a job's algorithm to its estimator of advantages: every name has one, of the kind that its traits say."""

from rljob_api.spec.advantages import ADVANTAGES, Advantage
from rljob_workers.estimators import BASELINE_ESTIMATORS, ROW_ESTIMATORS, TOKEN_ESTIMATORS


def test_every_name_has_traits_and_an_estimator_of_that_kind() -> None:
    assert set(ADVANTAGES) == set(Advantage)
    assert set(TOKEN_ESTIMATORS) == {name for name, traits in ADVANTAGES.items() if traits.is_per_token}
    assert set(BASELINE_ESTIMATORS) == {name for name, traits in ADVANTAGES.items() if traits.needs_greedy}
    assert set(ROW_ESTIMATORS) == set(Advantage) - set(TOKEN_ESTIMATORS) - set(BASELINE_ESTIMATORS)
    assert not any(traits.is_per_token for traits in ADVANTAGES.values() if traits.needs_greedy)
    assert not any(traits.needs_values for traits in ADVANTAGES.values() if not traits.is_per_token)
