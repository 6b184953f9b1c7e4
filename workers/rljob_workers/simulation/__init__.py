"""What simulated engines and trainers share: a policy that costs a hash, its weights, and the time that is spent.

For `engines.sim` and `trainers.sim_trainer` alone, which know nothing of each other. Computes no model.
"""
