"""`python -m rljob_cli` is `rljob`."""

from rljob_cli.main import main

main()
