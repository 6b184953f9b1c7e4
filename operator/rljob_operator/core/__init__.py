"""Pure decisions. Imports only `rljob_api`: no I/O, no clock, no client."""
