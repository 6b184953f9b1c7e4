"""The distributed checkpoint service: coordinator, rank session, weight transports, checkpoint store.

Roles use `membership`, `weights` and `checkpoints`, the launcher `membership`; `coordinator` is a process of its own.
Nothing here knows how a model trains or generates.
"""
