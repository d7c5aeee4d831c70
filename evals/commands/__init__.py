"""Sub-commands of `ttc` that evaluate: eval, compare, report."""
