"""Sub-commands of `ttc` that this package adds."""
