"""Messages between supervisor (or operator), coordinator, launchers and ranks. JSON over HTTP, camelCase.

Every request carries the job's token in `X-RLJob-Token`. A request that changes something carries epoch and
incarnation; one from a fenced life gets status 409 with `Refusal`.
"""
