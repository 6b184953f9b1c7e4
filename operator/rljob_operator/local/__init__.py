"""`rljob run`: the supervisor of a job on one machine, the first user of the restart core.

Starts processes, observes them and the coordinator, decides with `core`, persists, acts, and writes the run folder.
Never imports torch, never computes anything of the training itself, never decides anything that `core` could decide.
"""
