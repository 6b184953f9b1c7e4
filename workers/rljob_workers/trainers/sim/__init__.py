"""The simulated trainer and forward model: they hash rows and spend time instead of computing a model.

Made by the factories of `trainers`. All that roles ask of a trainer holds: parts of the weights for each rank, state
that any number of ranks restores, collectives in the same order.
"""
