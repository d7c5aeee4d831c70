"""Strategies: one file each, named like its function; the file name is the registration."""
