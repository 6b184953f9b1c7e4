"""A small inference server for CPU and tests that speaks SGLang's HTTP dialect."""

INCARNATION_HEADER = "x-rljob-incarnation"
"""Which life of the server answered."""
