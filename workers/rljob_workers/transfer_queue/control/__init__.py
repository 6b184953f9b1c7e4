"""Control plane: the queue's state on the control Redis, changed only by the Lua functions in `lua/`.

For `client` and `admin`; knows no bytes of rows, only where they lie.
"""
