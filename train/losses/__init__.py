"""Policy-gradient terms, one file each: a factory of the recipe's fields; shapes: `train.update.terms`."""
