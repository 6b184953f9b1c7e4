"""Checkpoints on shared storage: files on disk, one attempt, a rank's store, retention."""
