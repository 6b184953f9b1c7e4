"""Words of the torch engine's dialect that both ends share.

Imported by the server and by its client; imports nothing.
"""

INCARNATION_HEADER = "x-rljob-incarnation"
"""Which life of the server answered."""
