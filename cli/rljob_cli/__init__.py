"""The `rljob` command. Imports everything else lazily, so that `--help` is instant."""
