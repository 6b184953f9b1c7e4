"""How rewards become advantages, one estimator a file: formula, shapes and source in the docstring.

`estimator` has the two signatures. Called by the advantages role, and by the rollout where a group is all that is
needed. Pure torch; `rljob_api.spec.advantages` says of each name what can be known of it without torch.
"""
