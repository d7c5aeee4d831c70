"""The command line: the entry point, and the options that commands share and what they resolve to."""
