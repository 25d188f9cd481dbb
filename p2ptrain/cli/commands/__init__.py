"""The subcommands of `p2ptrain`, one file each."""
