"""Checks of a manifest and of what it names, on this machine and without torch; each gives findings."""
