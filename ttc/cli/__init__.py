"""The command line: the entry point, the options that commands share, and what they choose."""
