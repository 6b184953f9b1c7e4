"""Adapters: everything of the operator that talks to somebody: API server, coordinators, Prometheus, probes.

Called by `handlers` and `reconcile`. They decide nothing: what is to be done comes from `core`, what is to exist from
`build`.
"""
