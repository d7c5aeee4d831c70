"""The command line of the package."""
