"""Decides and acts: the restart core and its two users, Kubernetes and the local supervisor."""
