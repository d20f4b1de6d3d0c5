"""The console's own subcommands, one module each."""
