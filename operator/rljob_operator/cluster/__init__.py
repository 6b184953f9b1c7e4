"""The operator on a cluster: its process, the turn of a job, observation and actions. Decides with `core`."""
