"""The sub-commands of the core: each file has one function `register(subparsers)`."""
