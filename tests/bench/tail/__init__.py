"""Answers with a long tail, under each order of groups: `python -m tests.bench.tail --help`.

`jobs` has the manifests and runs them, `figures` makes a line of a run, `tail_model` a model whose answers have that
tail.
"""
