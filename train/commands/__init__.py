"""Sub-commands of `ttc` that belong to training."""
