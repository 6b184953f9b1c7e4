"""The workers: launcher, roles, queue, weight sync, engines, trainers. Never imports the operator."""
