"""A small inference server for CPU and tests that speaks SGLang's HTTP dialect."""

INCARNATION_HEADER = "x-rljob-incarnation"
"""Which incarnation of the server answered."""
