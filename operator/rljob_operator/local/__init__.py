"""`rljob run`: the restart core over processes of this machine."""
