"""The folder of a run: its lock, its configuration, its records."""
