"""Messages between supervisor (or operator), coordinator, launchers and ranks. JSON over HTTP, camelCase.

Every request carries the job's token in `X-RLJob-Token`. A request that changes something carries epoch and
incarnation; one from a fenced incarnation gets status 409 with `Refusal`.

Either side may be of another version: readers leave out what they do not know, so a version may add fields that have
defaults, and kinds of failures and events. The values of the other enums stay as they are.
"""
