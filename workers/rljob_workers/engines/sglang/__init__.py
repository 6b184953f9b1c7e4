"""The real SGLang: its server as a child of the launcher, and the client that drives it.

`sglang_backend` is what the registry reads; `cpu` stands in for what SGLang lacks without a GPU, and nothing else knows
it.
"""
