"""The roles that write a column per row: log-probs of the policy and of the reference, and advantages."""
