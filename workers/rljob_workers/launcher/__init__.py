"""The launcher: the first process of every pod, and the preloaded parent that forks the launchers of one machine.

    parent (preload)  ── forks ──  launcher per pod  ── forks ──  rank per process, engine server

A launcher registers with the coordinator, carries out the order of its pod and reports deaths; it decides nothing.
Nothing here runs a thread, a tensor operation or CUDA before a fork.
"""
