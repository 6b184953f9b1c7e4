"""Requests to a job's coordinator, shared by the operator and `rljob run`; only `cluster_transport` needs a cluster."""
