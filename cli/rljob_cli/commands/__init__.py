"""The subcommands of `rljob`, one module each; `main` imports a module when its command is called."""
