"""Words of the dialect that both ends share.

Imported by engine servers and by the client; imports nothing.
"""

INCARNATION_HEADER = "x-rljob-incarnation"
"""Which life of the server answered; a server that nobody here wrote does not send it."""
