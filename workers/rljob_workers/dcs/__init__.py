"""The distributed checkpoint service: coordinator, rank session, weight transports, checkpoint store.

Roles use `session`, `weights` and `checkpoints`; the launcher uses `launcher_client`; `coordinator` is a process of its
own. Nothing here knows how a model trains or generates.
"""
