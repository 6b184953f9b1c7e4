"""The queue beside its peer; `__main__` says what is measured."""
